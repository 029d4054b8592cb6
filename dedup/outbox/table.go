package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	engine "github.com/pgonce/pgonce/internal/outbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Table names an outbox. The zero value is the table outbox, found by the search path, with outbox_lanes beside it.
// A Table is a description: making one reads and writes nothing.
type Table struct {
	// Name is the table's name, with its schema or without, of 57 bytes at the most: "events", "app.events". It is
	// quoted for you, and its case kept. Empty means "outbox". Name it with its schema wherever the search path may
	// change.
	Name string
}

func (t Table) sql() (engine.SQL, error) {
	name, err := engine.ParseName(t.Name)
	if err != nil {
		return engine.SQL{}, err
	}
	return engine.For(name), nil
}

func names(tables []Table) ([]pg.Name, error) {
	if len(tables) == 0 {
		tables = []Table{{}}
	}
	all := make([]pg.Name, len(tables))
	for i, t := range tables {
		name, err := engine.ParseName(t.Name)
		if err != nil {
			return nil, err
		}
		all[i] = name
	}
	return all, nil
}

// Validate reports whether t can be a table. It does not look at a database; that is what [Verify] does.
func (t Table) Validate() error {
	if _, err := t.sql(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// DDL returns the SQL that makes the two tables, for a migration tool or psql. It can be run again. Its comments
// state the locks it takes. DDL panics where [Table.Validate] would return an error.
func (t Table) DDL() string {
	name, err := engine.ParseName(t.Name)
	if err != nil {
		panic("outbox: Table.DDL: " + err.Error())
	}
	return engine.DDL(name)
}

// Migrate makes the tables, or brings them up to the version of this library; with none given, the zero [Table]. It
// owns one READ COMMITTED transaction, in which it holds an advisory lock, so that several processes may call it at
// once. It ends with [Verify], and returns its *[dedup.VerifyError]; then, as on any other error, nothing is
// changed. A connection that is in a transaction is refused. Safe for concurrent use.
func Migrate(ctx context.Context, db interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}, tables ...Table,
) error {
	all, err := names(tables)
	if err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	if pg.PgxInTx(db) {
		return errors.New("outbox: migrate: the connection is in a transaction already")
	}
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	err = pgx.BeginTxFunc(ctx, db, opts, func(tx pgx.Tx) error {
		problems, err := engine.Migrate(ctx, pg.FromPgxTx(tx), all...)
		if err != nil {
			return err
		}
		return verifyError(problems)
	})
	if err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	return nil
}

// Verify proves from the catalog that each table can be an outbox; with none given, the zero [Table]. It asks: are
// both tables there, logged, with the columns, types and collations that the statements rely on; are the indexes
// valid; do the numbers ascend without gaps that a session keeps to itself (CACHE 1), and from above those that are there
// (where the role may use the sequence); is every lane there; can a
// trigger, a rule or row security drop or hide events; has the current role its rights.
//
// It returns nil when all of it holds, a *[dedup.VerifyError] with every problem where not, and any other error when
// it could not ask. The kinds: "table missing", "not our table", "not logged", "column missing", "column type",
// "index missing", "numbers out of order", "lane missing", "trigger" (rules, too), "row security", "rights missing",
// "not PostgreSQL". On Citus it refuses a table that Citus knows ("spread"), and one beside tables in shards ("not
// spread"): dedup/CITUS.md says why. Safe for concurrent use.
func Verify(ctx context.Context, db Conn, tables ...Table) error {
	all, err := names(tables)
	if err != nil {
		return fmt.Errorf("outbox: verify: %w", err)
	}
	var problems []engine.Problem
	for _, name := range all {
		p, err := engine.Verify(ctx, pg.FromPgx(db), name)
		if err != nil {
			return fmt.Errorf("outbox: verify: %w", err)
		}
		problems = append(problems, p...)
	}
	if err := verifyError(problems); err != nil {
		return fmt.Errorf("outbox: verify: %w", err)
	}
	return nil
}

// verifyError returns nil for no problems.
func verifyError(problems []engine.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	e := &dedup.VerifyError{}
	for _, p := range problems {
		found := dedup.Problem{Table: p.Table, Message: p.Message, Fix: p.Fix}
		if err := found.Kind.UnmarshalText([]byte(p.Kind)); err != nil {
			return err
		}
		e.Problems = append(e.Problems, found)
	}
	return e
}

// Conn is what single statements need: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, a pgx.Tx, or a wrapper of one.
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

// Lag counts what waits. It reads all of the table: call it every minute, and not for every event.
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

// Retry makes parked events due again, with all their attempts to come; all that are parked where no id is given. It
// returns how many. An id that is not parked is ignored. It waits for relays that are just writing down what failed.
func (t Table) Retry(ctx context.Context, db dedup.DB, ids ...string) (int64, error) {
	return t.change(ctx, db, "retry", engine.SQL.Retry, ids)
}

// Discard deletes parked events: they are never published. The next event of each key is due at once. It returns how
// many; an id that is not parked is ignored.
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
