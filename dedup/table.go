package dedup

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/internal/tables"
)

// DefaultRetention is how long a key is kept if its [Table] does not say: 35 days. The longest documented resend of a
// large sender is 31 days, Google Pub/Sub's.
const DefaultRetention = tables.DefaultRetention

// The longest source, operation and key that a table stores, in bytes. Together they stay well below the 2,704 bytes of
// a B-tree entry, however well the content compresses.
const (
	MaxScopeBytes = 255  // of a source, and of an operation
	MaxKeyBytes   = 1024 // of a key's stored form; see idem.Scope.Key
)

// MaxValueBytes is the largest value that can be stored with a key, in bytes. Values are answers, not documents.
const MaxValueBytes = 1 << 20

// Querier runs statements: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, a pgx.Tx, or a wrapper of one.
type Querier interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Table names a dedup table. The zero value is processed_events, found by the search path, with layout Plain and
// [DefaultRetention]. Making a Table reads and writes nothing.
type Table struct {
	// Name is the table's name, with or without its schema: "app.events", "events". Empty means "processed_events". It
	// is quoted for you, and its case kept; write a part that holds a dot in double quotes.
	//
	// Give the schema wherever the search path may change: where sessions or roles differ, or fn sets it (SET LOCAL
	// search_path for a tenant). Without a schema each statement looks the table up anew.
	Name string

	// Layout must be the layout that the table was made with.
	Layout Layout

	// Retention is how long after its claim a key is kept, and so for how long duplicates are recognised. 0 means
	// [DefaultRetention]. A key whose own time (idem.Key.OccurredAt) lies further back is refused with idem.ErrExpired.
	// A Retention shorter than your sender resends for lets late duplicates through, see Resends. Every program that
	// uses the table must say the same: the shortest one decides what is deleted.
	Retention time.Duration

	// Resends is for how long this table's senders may deliver a message again, the longest of several: [StripeResends]
	// and its like, or what your sender's documentation says. [Verify] reports a Retention that is shorter. 0 means
	// unknown: nothing is checked. Where the windows of two senders differ much, give each a table.
	Resends time.Duration

	// ShortRetention says that a Retention shorter than Resends is meant: what is sent again by hand after weeks may
	// run again. Verify then reports nothing.
	ShortRetention bool

	// Spread is by what Citus spreads the table over its nodes: "key" (colocated with no other table, the way for
	// most), "source" (a tenant's name is the source of its keys, which all lie in one shard), or "schema" (Name has a
	// schema for each tenant, whose tables lie on one node). Empty leaves the table as it is.
	//
	// [Migrate] spreads a table that it makes, on the coordinator; DDL has the statements. It never moves an existing
	// table, for claims would wait: [Verify] then names the statement. CITUS.md, beside this file, has more.
	//
	// A claim takes a cheaper statement where it is set, for a key with a time of its own (not with layout Weekly). It
	// is right on a table that is not spread, too.
	Spread string
}

// For how long large senders deliver a message again, by their documentation. [DefaultRetention] covers each.
const (
	StripeResends   = 30 * 24 * time.Hour // by "stripe events resend"; 15 days from the dashboard; 3 days by itself
	AppStoreResends = 157 * time.Hour     // 5 retries after 1, 12, 24, 48 and 72 hours, each from the one before
	PubSubResends   = 31 * 24 * time.Hour // a subscription's longest retention of messages; without a change it is 7 days
)

// below returns t for the engine.
func (t Table) below() tables.Table {
	return tables.Table{
		Name: t.Name, Layout: schema.Layout(t.Layout),
		Retention: t.Retention, Resends: t.Resends, ShortRetention: t.ShortRetention,
		Spread: schema.Spread(t.Spread),
	}
}

func below(all []Table) []tables.Table {
	s := make([]tables.Table, len(all))
	for i, t := range all {
		s[i] = t.below()
	}
	return s
}

// Validate reports whether t can be a table: its name, layout and retention. It does not look at a database; [Verify]
// does.
func (t Table) Validate() error {
	if _, err := t.below().Resolve(); err != nil {
		return fmt.Errorf("dedup: %w", err)
	}
	return nil
}

// DDL returns the SQL that makes the table, for goose, golang-migrate, tern, atlas or psql. It can be run again. Its
// comments state the locks it takes. DDL panics where [Table.Validate] returns an error.
func (t Table) DDL() string {
	s, err := t.below().Resolve()
	if err != nil {
		panic("dedup: Table.DDL: " + err.Error())
	}
	return schema.DDL(s)
}

// Migrate makes the tables, or brings them up to this library's version; with none given, the zero [Table]. On a table
// that is up to date it changes nothing, and needs no right to create. It owns one READ COMMITTED transaction with an
// advisory lock: of several processes one works, and the others wait. It refuses a connection that is in a transaction.
// Safe for concurrent use.
//
// It ends with [Verify], and returns its *[VerifyError] for a table that it cannot fix, such as one of yours with the
// same name. Then, as on any other error, nothing is changed. It ignores, and Verify reports, what a migration can live
// with: "trigger after", "foreign key", "other constraint", "replica identity", "not published", and how Citus has a
// table whose Spread is empty.
//
// Of an existing table it takes no lock but those that [Table.DDL] states for a newer version. For one that claims wait
// behind, it waits a second at a time, up to 30 times, and lets claims pass in between; then it is 55P03.
func Migrate(ctx context.Context, db DB, all ...Table) error {
	problems, err := tables.Migrate(ctx, pg.WriterPgx(db), below(all))
	if err := verified(problems, err); err != nil {
		return fmt.Errorf("dedup: migrate: %w", err)
	}
	return nil
}
