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

// DefaultRetention is how long a key is kept where a [Table] does not say: 35 days, longer than the longest documented
// resend of a large sender (Google Pub/Sub can keep a message for 31 days).
const DefaultRetention = tables.DefaultRetention

// The longest source, operation and key that a table stores, in bytes. Together they stay well below the 2,704 bytes of
// a B-tree entry, whatever they hold: PostgreSQL compresses some values and not others, so that a limit set by trying
// would depend on the content.
const (
	MaxScopeBytes = 255  // of a source, and of an operation
	MaxKeyBytes   = 1024 // of a key's stored form; see idem.Scope.Key
)

// MaxValueBytes is the largest value that can be stored with a key, in bytes. Values are answers, not documents.
const MaxValueBytes = 1 << 20

// Querier is what runs statements: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, a pgx.Tx, or a wrapper of one.
type Querier interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Table names a dedup table. The zero value is the table processed_events, found by the search path, with layout Plain
// and [DefaultRetention]. A Table is a description: making one reads and writes nothing.
type Table struct {
	// Name is the table's name, with its schema or without: "events", "app.events". It is quoted for you, and its case
	// kept; a part that holds a dot is written in double quotes. Empty means "processed_events".
	//
	// Name it with its schema wherever the search path may change: where sessions or roles have different ones, or fn sets
	// its own (SET LOCAL search_path for a tenant). Without a schema each statement looks it up anew.
	Name string

	// Layout must be the layout that the table was made with.
	Layout Layout

	// Retention is how long after its claim a key is kept, and so for how long duplicates are recognised. A key with a
	// time of its own (idem.Key.OccurredAt) that lies further back is refused with idem.ErrExpired. 0 means
	// [DefaultRetention]; a shorter one than your sender resends for lets late duplicates through, see Resends. Every
	// program that uses the table must say the same: the shortest one decides what is deleted.
	Retention time.Duration

	// Resends is for how long the sender of this table's messages may deliver one again: [StripeResends] and its like, or
	// what your own sender's documentation says; of several senders the longest. [Verify] reports a Retention that is
	// shorter. 0 means that nothing is known, and nothing is checked. Where the windows of two senders differ much, give
	// each a table.
	Resends time.Duration

	// ShortRetention says that a Retention shorter than Resends is meant: that what is sent again by hand after weeks may
	// run again. Verify then reports nothing.
	ShortRetention bool

	// Spread is by what Citus spreads the table over its nodes: "key" (colocated with no other table, the way for most),
	// "source" (a tenant's name is the source of its keys, and all of them lie in one shard), or "schema" (a schema for
	// each tenant: Name has it, and all of its tables lie on one node). Empty leaves the table as it is.
	//
	// [Migrate] spreads a table that it makes, on the coordinator, and DDL holds the statements. It never moves a table that
	// is there, for claims would wait: [Verify] then names the statement. CITUS.md beside this package has more.
	//
	// A claim takes a cheaper statement where it is set, for a key with a time of its own (not with layout Weekly). It is
	// right on a table that is not spread, too.
	Spread string
}

// For how long large senders deliver a message again, as they document it. Each of them is covered by [DefaultRetention].
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

// Validate reports whether t can be a table: its name, layout and retention. It does not look at a database; that is
// what [Verify] does.
func (t Table) Validate() error {
	if _, err := t.below().Resolve(); err != nil {
		return fmt.Errorf("dedup: %w", err)
	}
	return nil
}

// DDL returns the SQL that makes the table, for goose, golang-migrate, tern, atlas or psql. It can be run again. Its
// comments state the locks it takes. DDL panics where [Table.Validate] would return an error.
func (t Table) DDL() string {
	s, err := t.below().Resolve()
	if err != nil {
		panic("dedup: Table.DDL: " + err.Error())
	}
	return schema.DDL(s)
}

// Migrate makes the tables, or brings them up to the version of this library; with none given, the zero [Table]. It owns
// one READ COMMITTED transaction, in which it holds an advisory lock, so that several processes may call it at once: one
// works, the others wait, and find everything done. On a table that is up to date it changes nothing, and needs no right to create.
//
// It ends with [Verify], and returns its *[VerifyError] for a table that it cannot mend, for instance one of yours
// that has the same name; then, as on any other error, nothing is changed. It ignores what others have attached and a
// migration can live with: "trigger after", "foreign key", "other constraint", "replica identity", "not published", and how
// Citus has a table of which Spread says nothing. Verify reports those. It takes no lock
// on an existing table but those which [Table.DDL] states for a newer version. For one that claims wait behind it
// waits a second at a time, up to 30 times, and lets claims pass in between; then it is 55P03. A connection that is
// in a transaction is refused, for the COMMIT would end that one. Safe for concurrent use.
func Migrate(ctx context.Context, db DB, all ...Table) error {
	problems, err := tables.Migrate(ctx, pg.WriterPgx(db), below(all))
	if err := verified(problems, err); err != nil {
		return fmt.Errorf("dedup: migrate: %w", err)
	}
	return nil
}
