package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Lookup is [idem.Once.Lookup]: it reads the key's row, or returns [idem.ErrNotFound]. db may be a *sql.DB, a
// connection or a transaction. Use it to show things and to spare work, never to decide. Safe for concurrent use if db
// is.
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

// Forget is [idem.Once.Forget]: it deletes the key in the caller's transaction. It waits for a transaction that holds
// the key's row. Like [Do] it refuses a *sql.DB.
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
