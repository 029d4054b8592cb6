package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Lookup reads the key's row in one statement, by the primary key. It returns [idem.ErrNotFound] where there is none, and
// every other error as an *[idem.Error], or a *[idem.KeyError] before any SQL. db may be a *sql.DB, a connection or a
// transaction; in a transaction it sees what that has written. It is safe for concurrent use where db is.
//
// Lookup is for showing and for sparing work, never for deciding: between its answer and a write of yours another
// delivery can come. The decision is [Do]'s.
func (o Once) Lookup(ctx context.Context, db Conn, key idem.Key) (idem.Record, error) {
	c, err := o.claim(key)
	if err != nil {
		return idem.Record{}, err
	}
	r, err := c.Lookup(ctx, pg.FromSQL(db))
	if err != nil {
		return idem.Record{}, o.translate(key.Scope(), err)
	}
	return record(r), nil
}

func record(r claim.Record) idem.Record {
	return idem.Record{
		ProcessedAt: time.UnixMicro(r.ProcessedAt), Age: time.Duration(r.AgeMicros) * time.Microsecond,
		PayloadHash: r.PayloadHash, Value: r.Value, State: idem.State(r.State()), Attempt: int(r.Attempt),
	}
}

// Forget deletes the key in the caller's transaction; once that commits, the next delivery runs the effect again. It is
// for operators and tests: for an effect that was undone by hand, say. It returns [idem.ErrNotFound] where there is no
// row, and [idem.ErrInProgress] or [idem.ErrUnfinished] for a reservation, which it leaves alone; after those tx is
// usable. It waits for a transaction that holds the key's row. Like [Do] it refuses a *sql.DB.
func (o Once) Forget(ctx context.Context, tx Conn, key idem.Key) error {
	c, err := o.claim(key)
	if err != nil {
		return err
	}
	ctx, tx = whole(ctx, tx)
	seam, err := open(ctx, tx)
	if err != nil {
		return o.translate(key.Scope(), err)
	}
	return o.translate(key.Scope(), c.Forget(ctx, seam))
}
