package idemtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// lab is what one call of the kit works with.
type lab[D any] struct {
	Kit[D]
	t    TB
	call string // "Crash"
	site string // where the test calls the kit
	ctx  context.Context
	srv  *server
	cat  *catalog
	rand *rand.Rand

	said string // what there is to say of a part that found nothing

	original string
	all      []*stage // made when they are needed
	base     *baseline
}

// part is one of the things that the kit does with a handler.
type part[D any] struct {
	name string
	run  func(*lab[D]) error
}

// run makes the parts, on databases that they share, until one of them finds something.
func run[D any](t TB, k Kit[D], parts ...part[D]) {
	t.Helper()
	k = k.withDefaults()
	l := &lab[D]{Kit: k, t: t, call: parts[0].name, site: callSite(), rand: rand.New(rand.NewPCG(k.Seed, 0))} //nolint:gosec // not a secret
	if p := k.problem(); p != "" {
		t.Fatalf("idemtest: %s: %s", l.call, p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	l.ctx = ctx
	if Child() {
		l.beChild()
		return
	}
	var err error
	for _, p := range parts {
		if err == nil {
			l.call, l.said = p.name, ""
			begun := time.Now()
			if err = p.run(l); err == nil {
				t.Logf("idemtest: %s: %v%s", p.name, time.Since(begun).Round(time.Millisecond), l.said)
			}
		}
	}
	l.finish(err)
}

// prepare makes the original: a copy of the user's database, with what Setup adds.
func (l *lab[D]) prepare() (err error) {
	ctx, cancel := context.WithTimeout(l.ctx, setupTimeout)
	defer cancel()
	if l.srv, err = newServer(ctx, l.DSN, l.t.Name()); err != nil {
		return err
	}
	dropped, err := l.srv.sweep(ctx, l.t.Name())
	if err != nil {
		l.t.Logf("idemtest: remove what earlier runs left: %v", err) // somebody else may be at it
	}
	if len(dropped) > 0 {
		l.t.Logf("idemtest: removed what earlier runs left: %s", strings.Join(dropped, ", "))
	}
	if l.original, err = l.srv.clone(ctx, l.srv.cfg.ConnConfig.Database); err != nil {
		return err
	}
	pool, err := l.srv.pool(ctx, l.original, 8)
	if err != nil {
		return err
	}
	defer pool.Close() // or it cannot be copied
	if l.Setup != nil {
		if err := l.Setup(ctx, pool); err != nil {
			return fmt.Errorf("Kit.Setup: %w", err)
		}
	}
	if l.cat, err = readCatalog(ctx, pool, l.Tables, l.Ignore, l.Dedup); err != nil {
		return err
	}
	if len(l.cat.tables) == 0 {
		return errors.New("the database has no tables: make them in Kit.Setup, or name another database in Kit.DSN")
	}
	return save(ctx, pool, l.cat)
}

// end removes the databases, but for the one to keep.
func (l *lab[D]) end(keep string) {
	if l.srv == nil {
		return
	}
	for _, st := range l.all {
		if st.pool != nil {
			st.pool.Close()
		}
	}
	if err := l.srv.close(keep); err != nil {
		l.t.Logf("idemtest: remove the copies of the database: %v", err)
	}
}

// finish ends the call. err is what was found, if anything.
func (l *lab[D]) finish(err error) {
	l.t.Helper()
	if err == nil {
		l.end("")
		return
	}
	var f *finding
	if !errors.As(err, &f) {
		l.end("")
		l.t.Fatalf("idemtest: %s: the test could not be made: %v\n\tto replay: %s", l.call, err, l.replay(""))
		return
	}
	l.end(f.database)
	kept := ""
	if f.database != "" {
		kept = "\n\tthe database is kept: " + f.database
	}
	l.t.Fatalf("idemtest: %s: %s%s\n\tseed %d; to replay: %s%s", l.call, f.sentence, f.rows, l.Seed, l.replay(f.round),
		kept)
}

// replay is the command that runs this call again, with the same choices.
func (l *lab[D]) replay(round string) string {
	env := fmt.Sprintf("%s=%d ", seedEnv, l.Seed)
	if round != "" {
		env += roundEnv + "=" + round + " "
	}
	return env + "go test -count=1 -run '" + pattern(l.t.Name()) + "' " + testPackage()
}

// finding is a failure of the handler under test.
type finding struct {
	sentence string
	rows     string // the difference, a line for each row
	round    string // what to set IDEMTEST_ROUND to
	database string
}

// Error returns the sentence.
func (f *finding) Error() string { return f.sentence }

// onlyRound returns the round that IDEMTEST_ROUND asks for, or "".
func onlyRound() string { return os.Getenv(roundEnv) }

// ours is the prefix of the functions of this package.
const ours = "github.com/pgonce/pgonce/idem/idemtest."

// callSite returns file and line of the innermost caller outside of this package. Parent and child process agree on it.
func callSite() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, ours) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}

// acting is a handler on its connections, in a stage.
type acting[D any] struct {
	st     *stage
	db     *DB
	handle func(context.Context, D) error
}

// act makes a handler. close ends its connections.
func (l *lab[D]) act(st *stage, w *wire) (a *acting[D], err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Kit.Handler panicked: %v", p)
		}
	}()
	db := st.open(w, l.Workers, l.Configure)
	w.script.Pause() // what a handler sends when it is made belongs to no delivery
	defer w.script.Resume()
	handle := l.Handler(db)
	db.held = db.inUse()
	return &acting[D]{st, db, handle}, nil
}

func (a *acting[D]) close() { a.db.close() }

// errPanic is the outcome of a delivery whose handler panicked.
var errPanic = errors.New("the handler panicked")

// deliver calls the handler once.
func (l *lab[D]) deliver(ctx context.Context, a *acting[D], d D) (err error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { // a handler that ends its goroutine ends nobody else's
		result := errPanic
		defer func() {
			if p := recover(); p != nil {
				result = fmt.Errorf("%w: %v", errPanic, p)
			}
			done <- result
		}()
		result = a.handle(ctx, d)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(l.Timeout + 5*time.Second):
		return fmt.Errorf("the handler did not return %v after its context had ended", 5*time.Second)
	}
}

// redeliver delivers until the handler acknowledges.
func (l *lab[D]) redeliver(a *acting[D], d D) error {
	deadline := time.Now().Add(3 * l.Timeout)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		err := l.deliver(l.ctx, a, d)
		if err == nil {
			return nil
		}
		if time.Now().Add(pause).After(deadline) || l.ctx.Err() != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// probe reads the effects elsewhere.
func (l *lab[D]) probe() ([]string, error) {
	if l.Probe == nil {
		return nil, nil
	}
	lines, err := l.Probe(l.ctx)
	if err != nil {
		return nil, fmt.Errorf("Kit.Probe: %w", err)
	}
	return slices.Clone(lines), nil
}

// since returns the lines of a probe that an earlier one did not have.
func since(before, after []string) (fresh map[string]int) {
	fresh = map[string]int{}
	for _, line := range after {
		fresh[line]++
	}
	for _, line := range before {
		if fresh[line]--; fresh[line] <= 0 {
			delete(fresh, line)
		}
	}
	return fresh
}
