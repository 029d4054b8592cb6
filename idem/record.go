package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// State is where a key stands.
type State uint8

const (
	// Done: the effect is committed. Every key that Do or Run claimed is.
	Done State = iota + 1
	// Reserved: a reservation holds the key, and its lease has not run out.
	Reserved
	// Unfinished: a reservation holds the key, and its lease has run out.
	Unfinished
	// FinallyFailed: the key ended in a failure that no retry can help.
	FinallyFailed
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Done:
		return "done"
	case Reserved:
		return "reserved"
	case Unfinished:
		return "unfinished"
	case FinallyFailed:
		return "finally failed"
	}
	return "none"
}

// Record is what the table holds of a key.
type Record struct {
	ProcessedAt time.Time     // the beginning of the transaction that claimed it, by the server's clock
	Age         time.Duration // how long ago that was, by the same clock
	PayloadHash []byte        // SHA-256, where the key was claimed with a payload; else nil
	Value       []byte        // what was stored with it; else nil
	State       State
	Attempt     int // of a reservation, from 1
}

// Lookup reads the key's row in one statement. It returns [ErrNotFound] if there is none, every other error as an
// *[Error], and a *[KeyError] before any SQL. db may be a pool, a connection or a transaction, which sees what it has
// written.
//
// Use it to show things and to spare work, never to decide: another delivery can come before your write. [Do] decides.
func (o Once) Lookup(ctx context.Context, db dedup.Querier, key Key) (Record, error) {
	c, err := o.claim(key)
	if err != nil {
		return Record{}, err
	}
	r, err := c.Lookup(ctx, pg.FromPgx(db))
	if err != nil {
		return Record{}, o.translate(key.Scope(), err)
	}
	return record(r), nil
}

func record(r claim.Record) Record {
	return Record{
		ProcessedAt: time.UnixMicro(r.ProcessedAt), Age: time.Duration(r.AgeMicros) * time.Microsecond,
		PayloadHash: r.PayloadHash, Value: r.Value, State: State(r.State()), Attempt: int(r.Attempt),
	}
}

// Forget deletes the key in the caller's transaction; after the commit the next delivery runs the effect again. It is
// for operators and tests, as when an effect was undone by hand. It returns [ErrNotFound] if there is no row, and
// [ErrInProgress] or [ErrUnfinished] for a reservation, which stays; after those tx is usable. It does not see a claim
// that is not committed: ErrNotFound, and the key is there afterwards. A tx that was ended in SQL text is an *[Error],
// and nothing is sent.
func (o Once) Forget(ctx context.Context, tx pgx.Tx, key Key) error {
	c, err := o.claim(key)
	if err != nil {
		return err
	}
	return o.translate(key.Scope(), c.Forget(inside(ctx, tx), pg.FromPgxTx(tx)))
}
