package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Handler handles a message in a transaction.
type Handler func(ctx context.Context, tx pg.Tx, m Message) error

// Result is what became of an attempt.
type Result uint8

// The results. Of a message that was held, or lost to another worker, nobody needs to be told.
const (
	ResultNone    Result = 0
	ResultHandled Result = 1
	ResultFailed  Result = 2 // it comes again
	ResultDead    Result = 3
)

// Attempt is what a worker tells of an attempt.
type Attempt struct {
	Msg          Message // without body and headers
	Result       Result
	Waited, Held time.Duration
	Err          error // the handler's; or that nothing is known of the COMMIT
	Unknown      bool  // COMMIT was not answered, and what came of it could not be found out
}

// Worker handles one message at a time. It is not safe for concurrent use.
type Worker struct {
	Table  Table
	SQL    SQL
	Handle Handler

	Timeout            time.Duration
	Lease              time.Duration
	MaxAttempts        int
	MinRetry, MaxRetry time.Duration

	Conn pg.Conn // runs single statements, each committed by itself, READ COMMITTED and READ WRITE
	DB   pg.DB   // begins the handlers' transactions
}

// Step takes a message and handles it. found is false where none was due. err is the database's.
func (w *Worker) Step(ctx context.Context) (a Attempt, found bool, err error) {
	begun := time.Now()
	token := rand.Int64N(1<<62) + 1
	m, dead, left, err := w.claim(ctx, token)
	a = Attempt{Msg: m, Waited: time.Since(begun)}
	switch {
	case err != nil || m.ID == "":
		return a, false, err
	case left:
		return Attempt{}, true, nil
	case dead:
		a.Result, a.Err = ResultDead, errGone
		return a, true, nil
	}
	claimed := time.Now()
	err = w.attempt(ctx, token, &a)
	a.Held = time.Since(claimed)
	a.Msg.Body, a.Msg.Headers = nil, nil
	return a, true, err
}

var errGone = errors.New("the last attempt was left by a worker that was gone before it ended")

// claim returns a message without an id where none is due. One that is left is somebody else's for a while yet.
func (w *Worker) claim(ctx context.Context, token int64) (m Message, dead, left bool, err error) {
	var attempt int64
	s := &pg.Stmt{
		SQL: w.SQL.claim, Args: []any{
			token, w.Lease.Microseconds(), int64(w.MaxAttempts),
			// Nobody takes longer to write down what failed: the context for it ends.
			min(w.Lease, pg.CleanUpTime).Microseconds(),
		},
		Dest: []any{&m.ID, &m.Operation, &m.Source, &m.Key, &attempt, &dead, &left},
	}
	if err := w.Conn.Send(ctx, s); err != nil {
		return Message{}, false, false, fmt.Errorf("claim a message: %w", err)
	}
	m.Attempt = int(attempt)
	return m, dead, left, nil
}

// attempt handles a message that was claimed, and writes down what came of it.
func (w *Worker) attempt(ctx context.Context, token int64, a *Attempt) error {
	m := &a.Msg
	tx, seq, err := w.begin(ctx, token, m)
	if bad, ok := err.(*badRow); ok {
		a.Err = bad.error
		return w.failed(ctx, token, a)
	}
	if err != nil {
		// Nothing has been tried, so that nothing is counted.
		_, _ = w.end(ctx, *m, token, end{back: 1})
		return fmt.Errorf("begin: %w", err)
	}
	if tx == nil {
		_, err := w.end(ctx, *m, token, end{back: 1})
		return err
	}
	if m.Key != "" {
		held, err := w.order(ctx, tx, *m, seq, token)
		if held || err != nil {
			if err != nil {
				_, _ = w.end(ctx, *m, token, end{back: 1})
			}
			return err
		}
	}
	hctx, cancel := ctx, context.CancelFunc(func() {})
	if w.Timeout > 0 {
		hctx, cancel = context.WithTimeout(ctx, w.Timeout)
	}
	failed := handle(hctx, tx, token, *m, w.Handle)
	cancel()
	if failed == nil {
		return w.finish(ctx, tx, token, a)
	}
	_ = tx.Rollback(ctx)
	a.Err = failed
	return w.failed(ctx, token, a)
}

// badRow is the error of a message that cannot be given to a handler. It is the message's, and no other one waits for
// it.
type badRow struct{ error }

// begin begins the handler's transaction, with the message's row locked. It returns no transaction where somebody
// else has the message.
func (w *Worker) begin(ctx context.Context, token int64, m *Message) (tx pg.OwnTx, seq int64, err error) {
	var headers string
	var at int64
	lock := &pg.Stmt{SQL: w.SQL.lock, Args: append(m.name(), token), Dest: []any{&seq, &headers, &m.Body, &at}}
	mark := &pg.Stmt{SQL: markSQL, Args: []any{
		strconv.FormatInt(token, 10), strconv.FormatInt(token&^pg.MarkCount, 10),
	}, Dest: []any{new(string)}}
	if tx, err = w.DB.Begin(ctx, lock, mark); err != nil {
		switch code := pgerr.Code(err); {
		case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "54"), strings.HasPrefix(code, "XX"):
			// Data, limits, and damage: of this row, and as a rule of no other.
			return nil, 0, &badRow{err}
		}
		return nil, 0, err
	}
	if lock.Rows == 0 {
		_ = tx.Rollback(ctx)
		return nil, 0, nil
	}
	m.ReceivedAt, m.State = time.UnixMicro(at), Waiting
	if m.Headers, err = parseHeaders(headers); err != nil {
		_ = tx.Rollback(ctx)
		return nil, 0, &badRow{err}
	}
	return tx, seq, nil
}

// lateRest is how long a message waits that came, by its COMMIT, behind a later one which is being handled.
const lateRest = 100 * time.Millisecond

// order reports whether the message is held for another of its key; then tx has ended.
func (w *Worker) order(ctx context.Context, tx pg.OwnTx, m Message, seq, token int64) (held bool, err error) {
	var earlier, running bool
	err = tx.Send(ctx, &pg.Stmt{SQL: w.SQL.order, Args: []any{m.Key, seq}, Dest: []any{&earlier, &running}})
	switch {
	case err == nil && earlier:
		err = tx.Send(ctx, &pg.Stmt{SQL: w.SQL.hold, Args: append(m.name(), token), Dest: []any{new(int64)}},
			&pg.Stmt{SQL: w.SQL.behind, Args: []any{m.Key, seq}})
	case err == nil && running:
		err = tx.Send(ctx, w.endStmt(m, token, end{wait: lateRest, back: 1}))
	case err == nil:
		return false, nil
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return false, fmt.Errorf("look for the first of a key: %w", err)
	}
	return true, tx.Commit(ctx)
}

// finish marks the message as handled and commits. It works with a done context: what the handler has finished is
// kept.
func (w *Worker) finish(ctx context.Context, tx pg.OwnTx, token int64, a *Attempt) error {
	dctx, cancel := pg.Detached(ctx)
	defer cancel()
	m := a.Msg
	done := &pg.Stmt{SQL: w.SQL.finish, Args: append(m.name(), token), Dest: []any{new(int64)}}
	stmts := []*pg.Stmt{done}
	if m.Key != "" {
		stmts = append(stmts, &pg.Stmt{SQL: w.SQL.promote, Args: []any{m.Key}})
	}
	if a.Err = tx.Send(dctx, stmts...); a.Err == nil && done.Rows != 1 {
		a.Err = fmt.Errorf("%w: the transaction has ended, or the message's row has changed under its lock", ErrMisuse)
	}
	if a.Err != nil {
		_ = tx.Rollback(ctx)
		return w.failed(ctx, token, a)
	}
	a.Err = tx.Commit(dctx)
	if a.Err == nil {
		a.Result = ResultHandled
		return nil
	}
	a.Unknown = pgerr.CommitUnknown(a.Err)
	return w.failed(ctx, token, a)
}

// failed writes down that an attempt has failed; unless it has been committed after all, which it then finds.
func (w *Worker) failed(ctx context.Context, token int64, a *Attempt) error {
	m := a.Msg
	e := end{wait: w.backoff(m.Attempt), class: classOf(a.Err), err: a.Err}
	final := errors.Is(a.Err, ErrFinal) || errors.Is(a.Err, ErrMisuse)
	switch {
	case final, m.Attempt >= w.MaxAttempts && ctx.Err() == nil:
		e.wait = -1
	case ctx.Err() != nil:
		e = end{back: 1} // the program shuts down, and the message is not to blame
	}
	mine, err := w.end(ctx, m, token, e)
	switch {
	case err != nil:
		// The claim's time runs out, and then somebody finds what there is.
		if a.Unknown {
			return fmt.Errorf("the outcome is unknown: %w; then %w", a.Err, err)
		}
		a.Result = ResultFailed
		return fmt.Errorf("write down what failed: %w", err)
	case mine && e.back > 0:
		a.Unknown = false
	case mine && e.wait < 0:
		a.Result, a.Unknown = ResultDead, false
	case mine:
		a.Result, a.Unknown = ResultFailed, false
	default:
		return w.settle(ctx, token, a)
	}
	return nil
}

// settle asks of an attempt that is not there any more whether its COMMIT took place.
func (w *Worker) settle(ctx context.Context, token int64, a *Attempt) error {
	ctx, cancel := pg.Detached(ctx)
	defer cancel()
	s := &pg.Stmt{SQL: w.SQL.settle, Args: append(a.Msg.name(), token), Dest: []any{new(int64)}}
	if err := w.Conn.Send(ctx, s); err != nil {
		return fmt.Errorf("settle an attempt: %w", err)
	}
	a.Unknown, a.Result = false, ResultFailed
	if s.Rows == 1 {
		a.Result, a.Err = ResultHandled, nil
	}
	return nil
}

// end is how an attempt ends that is not committed.
type end struct {
	wait  time.Duration // below 0: for ever
	back  int64         // attempts not to be counted
	class string
	err   error
}

func (w *Worker) endStmt(m Message, token int64, e end) *pg.Stmt {
	args := append(m.name(), token, e.wait.Microseconds(), e.back, e.class, printable(e.err))
	if e.wait < 0 {
		args[4] = int64(-1)
	}
	return &pg.Stmt{SQL: w.SQL.fail, Args: args, Dest: []any{new(int64)}}
}

// end ends the attempt, and reports whether it still was this worker's. It works with a done context.
func (w *Worker) end(ctx context.Context, m Message, token int64, e end) (mine bool, err error) {
	ctx, cancel := pg.Detached(ctx)
	defer cancel()
	s := w.endStmt(m, token, e)
	for try := 1; ; try++ {
		err = w.Conn.Send(ctx, s)
		switch {
		case try < 3 && pgerr.Is(err, "22P05"): // the error's text has a letter that is not in the database's encoding
			s = w.endStmt(m, token, end{e.wait, e.back, e.class, errors.New(plain(printable(e.err)))})
		case err == nil || try == 3 || !pgerr.Retryable(err):
			return s.Rows == 1, err
		}
		s.Rows, s.Done = 0, false
	}
}

// backoff returns how long a message waits after so many attempts, give or take a fifth.
func (w *Worker) backoff(attempts int) time.Duration {
	d := w.MinRetry
	for range attempts - 1 {
		if d = d * 2; d >= w.MaxRetry {
			break
		}
	}
	d = min(d, w.MaxRetry)
	return d - d/5 + rand.N(d*2/5+1)
}

// maxError is how much of an error's text is kept.
const maxError = 1000

// plain puts a question mark in the place of what is not ASCII.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '?'
		}
		return r
	}, text)
}

// printable returns an error's text as the server can store it, without what the server printed of rows.
func printable(err error) string {
	if err == nil {
		return ""
	}
	text := fmt.Sprint(pg.WithoutDetail(err))
	return strings.ReplaceAll(strings.ToValidUTF8(text[:min(len(text), maxError)], "?"), "\x00", "?")
}
