package claim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

var errFn = errors.New("fn failed")

// want is what a call must come to.
type want struct {
	outcome Outcome
	errs    []error // each of which the error is; none: no error
	unknown bool    // the error says that nobody knows what became of COMMIT
	calls   int     // of fn
	log     string  // what was sent and done
}

func (w want) require(t *testing.T, db *fakeDB, res Result, err error, calls int) {
	t.Helper()
	require.Equal(t, w.outcome, res.Outcome)
	if len(w.errs) == 0 {
		require.NoError(t, err)
	}
	for _, e := range w.errs {
		require.ErrorIs(t, err, e)
	}
	var f *Failure
	require.Equal(t, w.unknown, errors.As(err, &f) && f.CommitUnknown, "%v", err)
	require.Equal(t, w.calls, calls)
	require.Equal(t, w.log, strings.Join(db.log, " "))
	require.Empty(t, db.turns, "transactions that were not begun")
}

// Run, across its transactions. fn holds what each of its calls returns; after the last one, nil.
func TestRunUnit(t *testing.T) {
	t.Parallel()
	const first, lost, met = "BEGIN INSERT COMMIT", "BEGIN INSERT COMMIT ", "BEGIN INSERT SELECT ROLLBACK"
	free := turn{free: true, id: 7}
	gone := turn{free: true, id: 7, commit: errGone}
	for _, c := range []struct {
		name  string
		turns []turn
		fn    []error
		tries int
		want
	}{
		{"new", []turn{free}, nil, 3, want{Executed, nil, false, 1, first}},
		{"there already", []turn{{row: done()}}, nil, 3, want{Duplicate, nil, false, 0, met}},
		{"leased", []turn{{row: &Record{Leased: true}}}, nil, 3, want{0, []error{ErrInProgress}, false, 0, met}},
		{"lease is over", []turn{{row: &Record{}}}, nil, 3, want{0, []error{ErrUnfinished}, false, 0, met}},
		{
			"neither inserted nor read",
			[]turn{{}, {}, {}},
			nil, 9,
			want{0, []error{errHidden}, false, 0, strings.Repeat(met+" ", 2) + met},
		},
		{"gone in between", []turn{{}, free}, nil, 1, want{Executed, nil, false, 1, met + " " + first}},

		{"fn fails", []turn{free}, []error{errFn}, 3, want{0, []error{errFn}, false, 1, "BEGIN INSERT ROLLBACK"}},
		{
			"fn fails with what another server told it",
			[]turn{free},
			[]error{errSerial},
			3,
			want{0, []error{errSerial}, false, 1, "BEGIN INSERT ROLLBACK"},
		},
		{
			"fn fails with what its transaction met",
			[]turn{{free: true, id: 7, check: pg.ErrTxFailed}, free},
			[]error{errSerial},
			3,
			want{Executed, nil, false, 2, "BEGIN INSERT ROLLBACK " + first},
		},
		{
			"fn ignores an error",
			[]turn{{free: true, id: 7, check: pg.ErrTxFailed}},
			nil, 3,
			want{0, []error{pg.ErrTxFailed}, false, 1, "BEGIN INSERT ROLLBACK"},
		},
		{
			"fn ends the transaction and fails",
			[]turn{{free: true, id: 7, check: pg.ErrTxEnded}},
			[]error{errFn},
			3,
			want{0, []error{errFn, pg.ErrTxEnded}, false, 1, "BEGIN INSERT ROLLBACK"},
		},

		{"no connection", []turn{{begin: errSerial}, free}, nil, 3, want{Executed, nil, false, 1, "BEGIN " + first}},
		{"not for another try", []turn{{begin: errCheck}}, nil, 3, want{0, []error{errCheck}, false, 0, "BEGIN"}},
		{
			"too often",
			[]turn{{begin: errSerial}, {begin: errSerial}},
			nil, 2,
			want{0, []error{errSerial}, false, 0, "BEGIN BEGIN"},
		},
		{
			"the read fails",
			[]turn{{read: errSerial}, {row: done()}},
			nil, 3,
			want{Duplicate, nil, false, 0, met + " " + met},
		},
		{
			"COMMIT says no",
			[]turn{{free: true, id: 7, commit: errSerial}, free},
			nil, 3,
			want{Executed, nil, false, 2, lost + first},
		},
		{
			"COMMIT says no for good",
			[]turn{{free: true, id: 7, commit: errCheck}},
			nil, 3,
			want{0, []error{errCheck}, false, 1, first},
		},

		// After a lost COMMIT the next claim settles it.
		{
			"lost, and it took place",
			[]turn{gone, {row: done(), own: true, id: 7}},
			nil, 3,
			want{Executed, nil, false, 1, lost + "BEGIN INSERT SELECT ROLLBACK"},
		},
		{
			"lost, and somebody else was faster",
			[]turn{gone, {row: done()}},
			nil, 3,
			want{Duplicate, nil, false, 1, lost + "BEGIN INSERT SELECT ROLLBACK"},
		},
		{"lost, and it did not", []turn{gone, free}, nil, 3, want{Executed, nil, false, 2, lost + first}},
		{
			"lost, it did not, fn fails",
			[]turn{gone, free},
			[]error{nil, errFn},
			3,
			want{0, []error{errFn}, false, 2, lost + "BEGIN INSERT ROLLBACK"},
		},
		{
			"lost, it did not, COMMIT says no",
			[]turn{gone, {free: true, id: 8, commit: errCheck}},
			nil, 3,
			want{0, []error{errCheck}, false, 2, lost + first},
		},
		{
			"lost, it did not, fn is retried, the row is another's",
			[]turn{gone, {free: true, id: 8, check: pg.ErrTxFailed}, {row: done()}},
			[]error{nil, errSerial},
			3,
			want{Duplicate, nil, false, 2, lost + "BEGIN INSERT ROLLBACK " + met},
		},
		{
			"lost, it did not, and its token says nothing any more",
			[]turn{gone, {free: true, id: 8, check: pg.ErrTxFailed}, {row: done(), own: true, id: 7}},
			[]error{nil, errSerial},
			3,
			want{Duplicate, nil, false, 2, lost + "BEGIN INSERT ROLLBACK " + met},
		},
		{
			"lost, and another holds the key",
			[]turn{gone, {row: &Record{Leased: true}}},
			nil, 3,
			want{0, []error{ErrInProgress}, false, 1, lost + "BEGIN INSERT SELECT ROLLBACK"},
		},
		{"lost, and no row is no answer", []turn{gone, {}, {}, {}}, nil, 3, want{
			0,
			[]error{errHidden, errGone},
			true, 1,
			strings.TrimSpace(lost + strings.Repeat("BEGIN INSERT SELECT ROLLBACK ", 3)),
		}},
		{
			"lost, and the key's time is over",
			[]turn{gone, {expired: true}},
			nil, 3,
			want{0, []error{ErrExpired, errGone}, true, 1, lost + "BEGIN INSERT SELECT SELECT ROLLBACK"},
		},
		{
			"lost, and nothing can be asked",
			[]turn{gone, {begin: errGone}, {begin: errGone}},
			nil, 3,
			want{0, []error{errGone}, true, 1, lost + "BEGIN BEGIN"},
		},
		{"lost, and no try is left", []turn{gone}, nil, 1, want{0, []error{errGone}, true, 1, first}},
		{
			"lost twice",
			[]turn{gone, gone, {row: done(), own: true, id: 7}},
			nil, 3,
			want{Executed, nil, false, 2, lost + lost + "BEGIN INSERT SELECT ROLLBACK"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := fakeClaim(t)
			cl.Tries = c.tries
			cl.Timed = slices.ContainsFunc(c.turns, func(t turn) bool { return t.expired })
			db := &fakeDB{t: t, claim: cl, turns: c.turns}
			calls := 0
			res, err := Run(t.Context(), db, cl, func(context.Context, pg.Tx) error {
				if calls++; calls <= len(c.fn) {
					return c.fn[calls-1]
				}
				return nil
			})
			c.require(t, db, res, err, calls)
		})
	}
}

// A context that ends in fn sends no COMMIT; a panic, and a goroutine that ends, roll back.
func TestRunEndsUnit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fn  func(cancel context.CancelFunc)
		err error
	}{
		"context": {func(cancel context.CancelFunc) { cancel() }, context.Canceled},
		"panic":   {func(context.CancelFunc) { panic(errFn) }, errFn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := fakeClaim(t)
			db := &fakeDB{t: t, claim: cl, turns: []turn{{free: true, id: 7}}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := func() (res Result, err error) {
				defer func() {
					if p := recover(); p != nil {
						err = p.(error)
					}
				}()
				return Run(ctx, db, cl, func(context.Context, pg.Tx) error { c.fn(cancel); return nil })
			}()
			want{0, []error{c.err}, false, 0, "BEGIN INSERT ROLLBACK"}.require(t, db, Result{}, err, 0)
		})
	}
}

// Do, in a transaction of the caller's: whatever it cannot answer for fails that one.
func TestDoUnit(t *testing.T) {
	t.Parallel()
	const (
		limited = "SAVEPOINT SELECT INSERT "
		last    = limited + "ROLLBACK SELECT SELECT LOCK "
	)
	free := turn{free: true, id: 7}
	for _, c := range []struct {
		name string
		turn turn
		wait time.Duration
		fn   error
		want
	}{
		{"new", free, 0, nil, want{Executed, nil, false, 1, "INSERT"}},
		{"there already", turn{row: done()}, 0, nil, want{Duplicate, nil, false, 0, "INSERT SELECT"}},
		{
			"leased",
			turn{row: &Record{Leased: true}},
			0, nil,
			want{0, []error{ErrInProgress}, false, 0, "INSERT SELECT"},
		},
		{
			"neither inserted nor read",
			turn{},
			0, nil,
			want{0, []error{errHidden}, false, 0, "INSERT SELECT INSERT SELECT INSERT SELECT"},
		},
		{
			"the claim fails",
			turn{fails: map[string]error{"INSERT": errSerial}},
			0, nil,
			want{0, []error{errSerial}, false, 0, "INSERT fail"},
		},
		{"the read fails", turn{read: errSerial}, 0, nil, want{0, []error{errSerial}, false, 0, "INSERT SELECT fail"}},
		{"fn fails", free, 0, errFn, want{0, []error{errFn}, false, 1, "INSERT fail"}},
		{
			"fn fails in what is over",
			turn{free: true, id: 7, fail: pg.ErrTxEnded},
			0, errFn,
			want{0, []error{errFn, pg.ErrTxEnded}, false, 1, "INSERT fail"},
		},
		{
			"fn ignores an error",
			turn{free: true, id: 7, check: pg.ErrTxFailed},
			0, nil,
			want{0, []error{pg.ErrTxFailed}, false, 1, "INSERT fail"},
		},
		{
			"fn leaves rows open",
			turn{free: true, id: 7, check: pg.ErrRowsOpen},
			0, nil,
			want{0, []error{pg.ErrRowsOpen}, false, 1, "INSERT fail"},
		},

		{"new, with a limit", free, time.Minute, nil, want{Executed, nil, false, 1, limited + "SELECT RELEASE"}},
		{
			"the limit is reached, and the key is held",
			turn{fails: map[string]error{"INSERT": each{errTimeout, errLocked}}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{0, []error{ErrInProgress}, false, 0, last + "INSERT ROLLBACK RELEASE"},
		},
		{
			"the limit is reached, and the key is free",
			turn{free: true, id: 7, fails: map[string]error{"INSERT": errTimeout}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{Executed, nil, false, 1, last + "INSERT SELECT SELECT RELEASE"},
		},
		{
			"the limit is reached, and the table is locked",
			turn{fails: map[string]error{"INSERT": errTimeout, "LOCK": errLocked}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{0, []error{errLocked}, false, 0, last + "fail"},
		},
		{
			"the limit is reached, and the server is slow",
			turn{fails: map[string]error{"INSERT": each{errTimeout, errTimeout}}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{0, []error{errTimeout}, false, 0, last + "INSERT fail"},
		},
		{
			"a lock_timeout of the caller's",
			turn{fails: map[string]error{"INSERT": errLocked}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{0, []error{errLocked}, false, 0, limited + "fail"},
		},
		{
			"a smaller limit of the caller's",
			turn{fails: map[string]error{"INSERT": errTimeout}},
			time.Minute, nil,
			want{0, []error{errTimeout}, false, 0, limited + "fail"},
		},
		{
			"the limit is reached, and what is over stays so",
			turn{
				fails: map[string]error{"INSERT": errTimeout, "ROLLBACK TO": errGone}, slow: 2 * time.Millisecond,
			},
			time.Millisecond, nil,
			want{0, []error{errGone}, false, 0, limited + "ROLLBACK fail"},
		},
		{
			"before the savepoint",
			turn{fails: map[string]error{"SAVEPOINT": errTimeout}, slow: 2 * time.Millisecond},
			time.Millisecond, nil,
			want{0, []error{errTimeout}, false, 0, "SAVEPOINT fail"},
		},
	} {
		for _, needsMark := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", with a mark", false: ""}[needsMark], func(t *testing.T) {
				t.Parallel()
				cl := fakeClaim(t)
				cl.MaxWait = c.wait
				db := &fakeDB{t: t, claim: cl}
				script := c.turn
				script.fails = map[string]error{}
				for k, v := range c.turn.fails {
					script.fails[k] = v
				}
				calls := 0
				tx := &fakeTx{turn: script, db: db, needsMark: needsMark}
				res, err := Do(t.Context(), tx, cl, func(context.Context, pg.Tx) error { calls++; return c.fn })
				c.require(t, db, res, err, calls)
			})
		}
	}
}

// A token is random in all of its bits but those in which the server counts: two calls must not have the same one.
func TestTokensUseAllBits(t *testing.T) {
	t.Parallel()
	for mark, want := range map[bool]int64{false: -1, true: ^pg.MarkCount} {
		var all int64
		for range 200 { // each bit is missing once in 2^200
			all |= newToken(mark)
		}
		require.Equal(t, want, all)
	}
}
