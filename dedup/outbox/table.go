package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	engine "github.com/pgonce/pgonce/internal/outbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Table names an outbox. The zero value is the table outbox, found by the search path, with outbox_lanes beside it.
// Making a Table reads and writes nothing.
type Table struct {
	// Name is the table's name, with or without its schema, of at most 57 bytes: "events", "app.events". Empty means
	// "outbox". It is quoted for you, and its case kept. Give the schema wherever the search path may change.
	Name string
}

func (t Table) sql() (engine.SQL, error) {
	name, err := engine.ParseName(t.Name)
	if err != nil {
		return engine.SQL{}, err
	}
	return engine.For(name), nil
}

func names(tables []Table) []string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.Name
	}
	return all
}

// Validate reports whether t can be a table. It does not look at a database; [Verify] does.
func (t Table) Validate() error {
	if _, err := t.sql(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// DDL returns the SQL that makes the two tables, for a migration tool or psql. It can be run again. Its comments state
// the locks it takes. DDL panics where [Table.Validate] returns an error.
func (t Table) DDL() string {
	name, err := engine.ParseName(t.Name)
	if err != nil {
		panic("outbox: Table.DDL: " + err.Error())
	}
	return engine.Tables().DDL(name)
}

// Migrate makes the tables, or brings them up to this library's version; with none given, the zero [Table]. It owns one
// READ COMMITTED transaction with an advisory lock, so several processes may call it at once. It ends with [Verify],
// and returns its *[dedup.VerifyError]; then, as on any other error, nothing is changed. A connection that is in a
// transaction is refused. Safe for concurrent use.
func Migrate(ctx context.Context, db dedup.DB, tables ...Table) error {
	return wrapped("migrate", engine.Tables().MigrateAll(ctx, pg.WriterPgx(db), names(tables)...))
}

// Verify proves from the catalog that each table can be an outbox; with none given, the zero [Table]. It returns nil
// when all of it holds, a *[dedup.VerifyError] with every problem where not, and any other error when it could not ask.
// It asks:
//
//   - are both tables there, logged, with the columns, types and collations that the statements rely on;
//   - are the indexes valid, and is every lane there;
//   - do the numbers ascend without gaps that a session keeps to itself (CACHE 1), and from above those that are there
//     (where the role may use the sequence);
//   - can a trigger, a rule or row security drop or hide events; has the current role its rights.
//
// The kinds: "table missing", "not our table", "not logged", "column missing", "column type", "index missing", "numbers
// out of order", "lane missing", "trigger" (rules, too), "row security", "rights missing", "not PostgreSQL".
// On Citus it refuses a table that Citus knows ("spread"), and one
// beside tables in shards ("not spread"): dedup/CITUS.md says why. Safe for concurrent use.
func Verify(ctx context.Context, db Conn, tables ...Table) error {
	return wrapped("verify", engine.Tables().VerifyAll(ctx, pg.FromPgx(db), names(tables)...))
}

// Conn runs single statements: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, a pgx.Tx, or a wrapper of one.
type Conn interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Lag is what waits in an outbox, for alarms.
type Lag struct {
	Waiting int64         // events in the table, with the other two
	Held    int64         // events that failed, or wait behind one of their key that did; with Parked
	Parked  int64         // events that had their last attempt: each holds up its key until somebody looks at it
	Oldest  time.Duration // how long the oldest event has waited, by the server's clock; 0 where there is none
}

// Lag counts what waits. It reads all of the table: call it every minute, not for every event.
func (t Table) Lag(ctx context.Context, db Conn) (Lag, error) {
	s, err := t.sql()
	if err != nil {
		return Lag{}, fmt.Errorf("outbox: lag: %w", err)
	}
	l, err := s.Lag(ctx, pg.FromPgx(db))
	if err != nil {
		return Lag{}, fmt.Errorf("outbox: lag: %w", err)
	}
	return Lag(l), nil
}

// Parked lists parked events, the oldest first, at most limit, each with its LastError.
func (t Table) Parked(ctx context.Context, db Conn, limit int) ([]Event, error) {
	s, err := t.sql()
	if err != nil {
		return nil, fmt.Errorf("outbox: parked: %w", err)
	}
	found, err := s.Parked(ctx, pg.FromPgx(db), limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: parked: %w", err)
	}
	return events(found), nil
}

// Retry makes parked events due again, with all their attempts to come; all that are parked if no id is given. It
// returns how many. An id that is not parked is ignored. It waits for relays that are just writing down what failed.
func (t Table) Retry(ctx context.Context, db dedup.DB, ids ...string) (int64, error) {
	return t.change(ctx, db, "retry", engine.SQL.Retry, ids)
}

// Discard deletes parked events: they are never published, and the next event of each key is due at once. It returns
// how many; an id that is not parked is ignored.
func (t Table) Discard(ctx context.Context, db dedup.DB, ids ...string) (int64, error) {
	return t.change(ctx, db, "discard", engine.SQL.Discard, ids)
}

func (t Table) change(ctx context.Context, db dedup.DB, what string,
	f func(engine.SQL, context.Context, pg.DB, ...string) (int64, error), ids []string,
) (int64, error) {
	s, err := t.sql()
	if err != nil {
		return 0, fmt.Errorf("outbox: %s: %w", what, err)
	}
	n, err := f(s, ctx, pg.WriterPgx(db), ids...)
	if err != nil {
		return 0, fmt.Errorf("outbox: %s: %w", what, err)
	}
	return n, nil
}
