package idemtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// Runner is [idem.Run] without the driver: run fn once for key, and keep key and effect together. It can be a store of
// your own, or a fake in your service's tests.
type Runner func(ctx context.Context, key idem.Key, fn func(context.Context) error) (idem.Outcome, error)

// Contract holds a Runner against what [idem.Run] promises. It fails with the first sentence that is not true:
//
//   - A new key runs fn and gives Executed; the same key again gives Duplicate, and fn is not called. (A fake of INSERT
//     ... ON CONFLICT DO NOTHING RETURNING that returns the row in conflict runs it twice.)
//   - Keys differ by source, by operation and by id, each on its own, and by every byte. (A table with another unique
//     key than (key, operation, source) takes some for one, or one for several.)
//   - An error of fn comes back, and frees the key. So does a panic, which goes on.
//   - A key is not free before fn has returned: of many calls at once one runs, and if that fails, another.
//   - A key that is not valid is an error, and fn is not called. So is a context that has ended.
//
// The store must not know the keys of the source "idemtest"; they are new in each call of Contract, and stay.
func Contract(t TB, run Runner) {
	t.Helper()
	c := contract{run: run, tag: fmt.Sprintf("%x", time.Now().UnixNano())}
	for _, clause := range []struct {
		name  string
		check func() error
	}{
		{"a duplicate", c.duplicate},
		{"different keys", c.different},
		{"an error", c.failing},
		{"a panic", c.panicking},
		{"calls at once", c.atOnce},
		{"failing calls at once", c.failingAtOnce},
		{"a key that is not valid", c.invalid},
		{"a context that has ended", c.cancelled},
	} {
		if err := clause.check(); err != nil {
			t.Fatalf("idemtest: Contract: %s: %v", clause.name, err)
		}
	}
}

type contract struct {
	run Runner
	tag string
}

func (c contract) key(id string) idem.Key {
	return idem.Scope{Source: "idemtest", Operation: "contract"}.Key(c.tag, id)
}

// once calls the runner, and checks what comes of it.
func (c contract) once(key idem.Key, want idem.Outcome) error {
	ctx, cancel := context.WithTimeout(context.Background(), contractTimeout)
	defer cancel()
	calls := 0
	out, err := c.run(ctx, key, func(context.Context) error { calls++; return nil })
	switch {
	case err != nil:
		return fmt.Errorf("an error instead of %v: %w", want, err)
	case calls > 1:
		return fmt.Errorf("fn was called %d times in one call", calls)
	case out == idem.Duplicate && calls > 0:
		return errors.New("fn was called, and the outcome is Duplicate")
	case out != want && want == idem.Duplicate:
		return errors.New("the key was there already, and fn was called again: the row in conflict is not a new row, " +
			"and the unique key must be the whole key and nothing else")
	case out != want:
		return fmt.Errorf("the key was new, and the outcome is %v: another key was taken for it", out)
	case out == idem.Executed && calls == 0:
		return errors.New("the outcome is Executed, and fn was not called")
	}
	return nil
}

const contractTimeout = 10 * time.Second

func (c contract) duplicate() error {
	if err := c.once(c.key("duplicate"), idem.Executed); err != nil {
		return err
	}
	for range 3 {
		if err := c.once(c.key("duplicate"), idem.Duplicate); err != nil {
			return err
		}
	}
	return nil
}

func (c contract) different() error {
	scope := idem.Scope{Source: "idemtest", Operation: "contract"}
	keys := []idem.Key{
		scope.Key(c.tag, "k"), scope.Key(c.tag, "k "), scope.Key(c.tag, "K"), scope.Key(c.tag, "k", "l"),
		scope.Key(c.tag, "k/l"),
		scope.Key(c.tag, "é"), scope.Key(c.tag, "e\u0301"), scope.HashedKey(c.tag, "k"),
		scope.Key(c.tag, strings.Repeat("k", 900)), scope.Key(c.tag, strings.Repeat("k", 900)+"l"),
		idem.Scope{Source: "idemtest", Operation: "another"}.Key(c.tag, "k"),
		idem.Scope{Source: "idemtest-2", Operation: "contract"}.Key(c.tag, "k"),
	}
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		for _, k := range keys {
			if err := c.once(k, want); err != nil {
				return fmt.Errorf("%s: %w", cut(k.String(), 80), err)
			}
		}
	}
	return nil
}

var errContract = errors.New("an error of fn")

func (c contract) failing() error {
	key := c.key("failing")
	out, err := c.run(context.Background(), key, func(context.Context) error { return errContract })
	if !errors.Is(err, errContract) || out != 0 {
		return fmt.Errorf("fn's error did not come back: outcome %v, error %w", out, errOr(err))
	}
	if err := c.once(key, idem.Executed); err != nil {
		return fmt.Errorf("after fn had failed: %w", err)
	}
	return c.once(key, idem.Duplicate)
}

func errOr(err error) error {
	if err == nil {
		return errors.New("nil")
	}
	return err
}

func (c contract) panicking() error {
	key := c.key("panicking")
	recovered := func() (p any) {
		defer func() { p = recover() }()
		_, _ = c.run(context.Background(), key, func(context.Context) error { panic(errContract) })
		return nil
	}()
	if recovered != errContract { //nolint:errorlint // the very value
		return fmt.Errorf("fn's panic did not go on, but %v", recovered)
	}
	if err := c.once(key, idem.Executed); err != nil {
		return fmt.Errorf("after fn had panicked: %w", err)
	}
	return nil
}

// together makes calls at once, and counts their outcomes and the calls of fn. Those that end with an error are made
// again.
func (c contract) together(key idem.Key, fn func(call int64) error) (executed, duplicate, calls int64, err error) {
	const callers = 8
	ctx, cancel := context.WithTimeout(context.Background(), contractTimeout)
	defer cancel()
	var n, did, dup atomic.Int64
	errs := make(chan error, callers)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range callers {
		wg.Go(func() {
			<-start
			for {
				out, err := c.run(ctx, key, func(context.Context) error { return fn(n.Add(1)) })
				switch {
				case err == nil && out == idem.Executed:
					did.Add(1)
				case err == nil && out == idem.Duplicate:
					dup.Add(1)
				case ctx.Err() != nil:
					errs <- fmt.Errorf("no outcome within %v: %w", contractTimeout, errOr(err))
					return
				default:
					time.Sleep(time.Millisecond)
					continue
				}
				return
			}
		})
	}
	close(start)
	wg.Wait()
	select {
	case err = <-errs:
	default:
	}
	return did.Load(), dup.Load(), n.Load(), err
}

func (c contract) atOnce() error {
	did, dup, calls, err := c.together(c.key("at once"),
		func(int64) error { time.Sleep(5 * time.Millisecond); return nil })
	if err == nil && (did != 1 || calls != 1) {
		err = fmt.Errorf("fn ran %d times; %d calls gave Executed and %d Duplicate", calls, did, dup)
	}
	return err
}

func (c contract) failingAtOnce() error {
	did, dup, _, err := c.together(c.key("failing at once"), func(call int64) error {
		time.Sleep(5 * time.Millisecond)
		if call <= 2 {
			return errContract
		}
		return nil
	})
	if err == nil && did != 1 {
		err = fmt.Errorf("the first two calls of fn failed, and %d later ones gave Executed, %d Duplicate: the key of a "+
			"failed call is "+
			"neither done nor lost", did, dup)
	}
	return err
}

func (c contract) invalid() error {
	for _, key := range []idem.Key{{}, c.key(""), c.key("a\x00b"), idem.Scope{Operation: "contract"}.Key(c.tag)} {
		called := false
		out, err := c.run(context.Background(), key, func(context.Context) error { called = true; return nil })
		if err == nil || called {
			return fmt.Errorf("no error, outcome %v, fn called: %v", out, called)
		}
	}
	return nil
}

func (c contract) cancelled() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	called := false
	if _, err := c.run(ctx, c.key("cancelled"), func(context.Context) error { called = true; return nil }); err == nil ||
		called {
		return fmt.Errorf("no error, fn called: %v", called)
	}
	return c.once(c.key("cancelled"), idem.Executed)
}
