package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/front"
)

// laidOut is a database whose tables have a layout, of which the tests need not know: it is put into the settings of
// every call that names none.
type laidOut struct {
	DB
	door Door
}

func (d Door) settings(s Settings) Settings {
	if s.Table.Layout == dedup.Plain {
		s.Table.Layout = d.Layout
	}
	if d.Spread != "" && s.Table.Spread == "" {
		s.Table.Spread = "key"
	}
	return s
}

// occurred is the time of all events that a test gives none, where the layout wants one.
var occurred = time.Now().UTC()

func (d Door) key(k idem.Key) idem.Key {
	if d.Layout == dedup.Weekly && !front.Timed(front.FactsOf(k)) {
		return k.OccurredAt(occurred)
	}
	return k
}

// ddl makes a table of the door's layout.
func (d Door) ddl(name string) string {
	ddl := dedup.Table{Name: name, Layout: d.Layout}.DDL()
	if d.Layout != dedup.Weekly {
		return ddl
	}
	if name == "" {
		name = "processed_events"
	}
	// Tests that write rows by themselves give no time either.
	return ddl + strings.NewReplacer("events", name, "now", occurred.Format(time.RFC3339Nano)).Replace(`
CREATE TABLE events_all PARTITION OF events FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
ALTER TABLE events ALTER COLUMN event_time SET DEFAULT 'now',
  ALTER COLUMN bucket SET DEFAULT date_trunc('week', timestamptz 'now' AT TIME ZONE 'UTC')::date;
`)
}

// primary is the key of the table.
func (d Door) primary() string {
	if d.Layout == dedup.Weekly {
		return "key, operation, source, bucket"
	}
	return "key, operation, source"
}

func (d laidOut) Begin(ctx context.Context, level string) (Tx, error) {
	tx, err := d.DB.Begin(ctx, level)
	if err != nil {
		return nil, err
	}
	return laidOutTx{tx, d.door}, nil
}

func (d laidOut) Run(
	ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) error,
) (idem.Outcome, error) {
	return d.DB.Run(ctx, d.door.settings(s), d.door.key(key), d.door.within(fn))
}

func (d laidOut) Apply(ctx context.Context, s Settings, key idem.Key, effects ...Effect) (idem.Outcome, error) {
	return d.DB.Apply(ctx, d.door.settings(s), d.door.key(key), effects...)
}

func (d laidOut) Lookup(ctx context.Context, s Settings, key idem.Key) (idem.Record, error) {
	return d.DB.Lookup(ctx, d.door.settings(s), d.door.key(key))
}

func (d laidOut) RunReturning(
	ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error),
) (Receipt, idem.Outcome, error) {
	return d.DB.RunReturning(ctx, d.door.settings(s), d.door.key(key), func(ctx context.Context, tx Tx) (Receipt, error) {
		return fn(ctx, laidOutTx{tx, d.door})
	})
}

func (d laidOut) Reserve(
	ctx context.Context, s Settings, key idem.Key, lease time.Duration,
) (Reservation, idem.Outcome, error) {
	return d.DB.Reserve(ctx, d.door.settings(s), d.door.key(key), lease)
}

func (d laidOut) Pending(ctx context.Context, s Settings, scope idem.Scope, limit int) ([]idem.PendingKey, error) {
	return d.DB.Pending(ctx, d.door.settings(s), scope, limit)
}

func (d laidOut) Call(ctx context.Context, c Call, key idem.Key) (Receipt, idem.Outcome, error) {
	c.Settings = d.door.settings(c.Settings)
	if apply := c.Apply; apply != nil {
		c.Apply = func(ctx context.Context, tx Tx, v Receipt) error { return apply(ctx, laidOutTx{tx, d.door}, v) }
	}
	return d.DB.Call(ctx, c, d.door.key(key))
}

func (d Door) within(fn func(context.Context, Tx) error) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error { return fn(ctx, laidOutTx{tx, d}) }
}

type laidOutTx struct {
	Tx
	door Door
}

func (t laidOutTx) Do(
	ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) error,
) (idem.Outcome, error) {
	return t.Tx.Do(ctx, t.door.settings(s), t.door.key(key), t.door.within(fn))
}

func (t laidOutTx) DoMany(
	ctx context.Context, s Settings, keys []idem.Key, fn func(context.Context, Tx, []int) error,
) ([]idem.Result, error) {
	timed := make([]idem.Key, len(keys))
	for i, key := range keys {
		timed[i] = t.door.key(key)
	}
	return t.Tx.DoMany(ctx, t.door.settings(s), timed, func(ctx context.Context, tx Tx, fresh []int) error {
		return fn(ctx, laidOutTx{tx, t.door}, fresh)
	})
}

func (t laidOutTx) DoReturning(
	ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error),
) (Receipt, idem.Outcome, error) {
	return t.Tx.DoReturning(ctx, t.door.settings(s), t.door.key(key), func(ctx context.Context, tx Tx) (Receipt, error) {
		return fn(ctx, laidOutTx{tx, t.door})
	})
}

func (t laidOutTx) Forget(ctx context.Context, s Settings, key idem.Key) error {
	return t.Tx.Forget(ctx, t.door.settings(s), t.door.key(key))
}

func (t laidOutTx) Lookup(ctx context.Context, s Settings, key idem.Key) (idem.Record, error) {
	return t.Tx.Lookup(ctx, t.door.settings(s), t.door.key(key))
}

func (t laidOutTx) Nested(ctx context.Context, fn func(Tx) error) error {
	return t.Tx.Nested(ctx, func(tx Tx) error { return fn(laidOutTx{tx, t.door}) })
}
