package claim

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// A look is one limited try at a claim. The first has all of MaxWait. Where that ends it, either somebody holds the key
// or the server is slow, and the server says the same of both. So a last look follows, with a limit for locks: only
// what waits for a lock meets that. It takes the table's lock before the key's, so that the two can be told apart.
// And it claims a key that nobody holds.
type look struct {
	all          time.Duration
	last, spread bool    // spread: the server is a cluster of Citus, where the limit for locks reaches one node only
	lock         pg.Stmt // of the last one: the table's lock
}

// The limits of a last look: short for the key, which has been waited for, and long for a server that is slow.
const (
	lastLook     = time.Second
	lastLookLock = `10ms` // of each lock
)

// errTimeUp: the time of a first look is over.
var errTimeUp = errors.New("the wait is over")

func newLook(left time.Duration) *look { return &look{all: max(left, time.Millisecond)} }
func newLastLook() *look               { return &look{all: lastLook, last: true} }

// before are the statements that go before a claim. Those of a last look have to be answered first: the driver would
// prepare the claim before it sends any of them, and the table's lock may be what it then waits for.
func (l *look) before(c *Claim) []*pg.Stmt {
	if !l.last {
		return []*pg.Stmt{limit(l.all)}
	}
	var old, now string
	l.lock = pg.Stmt{SQL: c.SQL.text[stmtLock]}
	return []*pg.Stmt{limit(l.all), {SQL: pinnedLockLimit, Dest: []any{&old, &now, &l.spread}}, &l.lock}
}

// after are those that go behind it.
func (l *look) after() []*pg.Stmt {
	var now string
	all := []*pg.Stmt{{SQL: pinnedUnlimit, Dest: []any{&now}}}
	if l.last {
		all = append(all, &pg.Stmt{SQL: pinnedLockUnlimit, Dest: []any{&now}})
	}
	return all
}

// begin begins a transaction and sends stmts in it.
func (l *look) begin(ctx context.Context, db pg.DB, c *Claim, stmts ...*pg.Stmt) (pg.OwnTx, error) {
	if !l.last {
		return db.Begin(ctx, slices.Concat(l.before(c), stmts, l.after())...)
	}
	tx, err := db.Begin(ctx, l.before(c)...)
	if err != nil {
		return nil, err
	}
	if err := tx.Send(ctx, append(stmts, l.after()...)...); err != nil {
		_ = tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// ended says what err means, which has ended the look after begun, or returns nil where it was no limit of ours.
func (l *look) ended(stage Stage, err error, begun time.Time) error {
	// A cancel request, and a smaller limit of the caller's, have the same code and come earlier.
	timeUp := pgerr.Is(err, "57014") && time.Since(begun) >= l.all
	switch {
	case timeUp && !l.last:
		return errTimeUp
	case pgerr.Is(err, "55P03") && l.lock.Done, timeUp && l.lock.Done && l.spread:
		return &Failure{Stage: stage, Err: ErrInProgress}
	}
	return nil
}

// failure adds to f, which ended the look, what is known of the reason.
func (l *look) failure(f *Failure, c *Claim) *Failure {
	switch {
	case !l.last || f.Hint != "":
	case pgerr.Is(f.Err, "55P03") && !l.lock.Done:
		f.Hint = "table " + c.SQL.table +
			" or a partition of it was locked for all of MaxWait; nobody is known to hold the key"
	// LOCK TABLE waits on each node, where no limit for locks is
	case pgerr.Is(f.Err, "57014") && !l.lock.Done && l.spread:
		f.Hint = "table " + c.SQL.table +
			" was locked on a node for all of MaxWait, or the cluster was too slow; nobody is known to hold the key"
	case pgerr.Is(f.Err, "57014"):
		f.Hint = "the server was too slow to claim within MaxWait; nobody is known to hold the key"
	}
	return f
}

// limit bounds the statements after it by d, rounded up to the millisecond, for 0 would mean no limit; by 24 days at
// the most, which is as much as the server takes.
func limit(d time.Duration) *pg.Stmt {
	ms := min((d-1)/time.Millisecond+1, math.MaxInt32)
	var old, now string
	return &pg.Stmt{SQL: pinnedLimit, Args: []any{int64(ms)}, Dest: []any{&old, &now}}
}
