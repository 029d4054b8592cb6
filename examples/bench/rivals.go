package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// message is one that is delivered, and what it does.
type message struct {
	id string

	// between, where not nil, runs between the claim and the effect, inside of the effect's transaction.
	between func(tx pgx.Tx)
}

const effectSQL = `INSERT INTO bench_effects (id, amount) VALUES ($1::text, 1200::int)`

func (m message) effect(ctx context.Context, tx pgx.Tx) error {
	if m.between != nil {
		m.between(tx)
	}
	_, err := tx.Exec(ctx, effectSQL, m.id)
	return err
}

// answer is what a delivery that did not fail was told. Both acknowledge it.
type answer int

const (
	executed answer = iota
	duplicate
)

// rival is a way to handle deliveries. Each is written as those would who defend it.
type rival struct {
	name, says string
	table      string
	sql        string // makes the table; empty: it is a table of package dedup
	deliver    func(ctx context.Context, db *pgxpool.Pool, m message) (answer, error)
}

// rivals returns all ways, the reference first. One more is one more entry: everything else follows from it.
func rivals() []rival {
	return append([]rival{
		{
			name:  "by hand",
			says:  "BEGIN; INSERT ... ON CONFLICT DO NOTHING; the effect or, for no row, a SELECT; COMMIT or ROLLBACK",
			table: "bench_hand", deliver: byHand,
		},
		{name: "`idem.Do`", says: "in a transaction of the caller's", table: "bench_do", deliver: do},
		{name: "`idem.Run`", says: "in a transaction of its own", table: "bench_run", deliver: run1},
		{name: "`Once.Apply`", says: "claim, effect and COMMIT in one round trip", table: "bench_apply", deliver: apply},
	}, others()...)
}

var scope = idem.Scope{Source: "bench", Operation: "book-payment"}

func do(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	once := idem.Once{Table: dedup.Table{Name: "bench_do"}}
	return inTx(ctx, db, func(tx pgx.Tx) (answer, error) {
		out, err := once.Do(ctx, tx, scope.Key(m.id), m.effect)
		return told(out), err
	})
}

func run1(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	once := idem.Once{Table: dedup.Table{Name: "bench_run"}}
	out, err := once.Run(ctx, db, scope.Key(m.id), m.effect)
	return told(out), err
}

func apply(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	var effects pgx.Batch
	effects.Queue(effectSQL, m.id)
	once := idem.Once{Table: dedup.Table{Name: "bench_apply"}}
	out, err := once.Apply(ctx, db, scope.Key(m.id), &effects)
	return told(out), err
}

func told(out idem.Outcome) answer {
	if out == idem.Executed {
		return executed
	}
	return duplicate
}

// inTx runs f in a transaction, and commits where f succeeds.
func inTx(ctx context.Context, db *pgxpool.Pool, f func(tx pgx.Tx) (answer, error)) (answer, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after COMMIT it does nothing
	a, err := f(tx)
	if err != nil {
		return 0, err
	}
	return a, tx.Commit(ctx)
}

func byHand(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after COMMIT it does nothing
	tag, err := tx.Exec(ctx, `
		INSERT INTO bench_hand (source, operation, key) VALUES ($1::text, $2::text, $3::text)
		ON CONFLICT (key, operation, source) DO NOTHING`, scope.Source, scope.Operation, m.id)
	if err != nil {
		return 0, err
	}
	if tag.RowsAffected() == 1 {
		if err := m.effect(ctx, tx); err != nil {
			return 0, err
		}
		return executed, tx.Commit(ctx)
	}
	var n int
	err = tx.QueryRow(ctx, `SELECT 1 FROM bench_hand WHERE key = $1::text AND operation = $2::text AND source = $3::text`,
		m.id, scope.Operation, scope.Source).Scan(&n)
	if err != nil {
		return 0, err
	}
	return duplicate, tx.Rollback(ctx)
}

// others returns the ways that are in use elsewhere.
func others() []rival {
	keyed := func(table string) string { return `CREATE TABLE ` + table + ` (key text COLLATE "C" PRIMARY KEY)` }
	// The tables of those that look before they write have no constraint: with one, the look would not be needed.
	loose := func(table string) string {
		return fmt.Sprintf(`CREATE TABLE %s (key text COLLATE "C" NOT NULL); CREATE INDEX ON %[1]s (key)`, table)
	}
	return []rival{
		{
			name:  "select, then insert",
			says:  "SELECT the key; where it is not there INSERT it and do the effect, in one transaction",
			table: "bench_select", sql: loose("bench_select"),
			deliver: func(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
				return inTx(ctx, db, func(tx pgx.Tx) (answer, error) { return lookFirst(ctx, tx, "bench_select", m) })
			},
		},
		{
			name: "advisory lock", says: "pg_advisory_xact_lock of the key's hash, then the same",
			table: "bench_lock", sql: loose("bench_lock"),
			deliver: func(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
				return inTx(ctx, db, func(tx pgx.Tx) (answer, error) {
					_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0::bigint))`, m.id)
					if err != nil {
						return 0, err
					}
					return lookFirst(ctx, tx, "bench_lock", m)
				})
			},
		},
		{
			name: "insert, catch 23505", says: "INSERT the key; 23505 of that statement is a duplicate, and rolls back",
			table: "bench_catch", sql: keyed("bench_catch"), deliver: catchDuplicate,
		},
		{
			name: "the same, with a savepoint", says: "the transaction stays usable after 23505",
			table: "bench_savepoint", sql: keyed("bench_savepoint"), deliver: withSavepoint,
		},
		{
			name: "`DO UPDATE` no-op", says: "INSERT ... ON CONFLICT DO UPDATE SET key = excluded.key RETURNING xmax = 0",
			table: "bench_noop", sql: keyed("bench_noop"), deliver: noopUpdate,
		},
		{
			name: "claim committed first", says: "INSERT the key in a transaction of its own, then the effect in another",
			table: "bench_first", sql: keyed("bench_first"), deliver: claimFirst,
		},
	}
}

func lookFirst(ctx context.Context, tx pgx.Tx, table string, m message) (answer, error) {
	var n int
	err := tx.QueryRow(ctx, `SELECT 1 FROM `+table+` WHERE key = $1::text LIMIT 1`, m.id).Scan(&n)
	if !errors.Is(err, pgx.ErrNoRows) {
		return duplicate, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO `+table+` (key) VALUES ($1::text)`, m.id); err != nil {
		return 0, err
	}
	return executed, m.effect(ctx, tx)
}

func isDuplicate(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505"
}

func catchDuplicate(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after COMMIT it does nothing
	_, err = tx.Exec(ctx, `INSERT INTO bench_catch (key) VALUES ($1::text)`, m.id)
	if isDuplicate(err) {
		return duplicate, nil
	}
	if err == nil {
		err = m.effect(ctx, tx)
	}
	if err != nil {
		return 0, err
	}
	return executed, tx.Commit(ctx)
}

func withSavepoint(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	return inTx(ctx, db, func(tx pgx.Tx) (answer, error) {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return 0, err
		}
		_, err = nested.Exec(ctx, `INSERT INTO bench_savepoint (key) VALUES ($1::text)`, m.id)
		if isDuplicate(err) {
			return duplicate, nested.Rollback(ctx)
		}
		if err == nil {
			err = nested.Commit(ctx)
		}
		if err != nil {
			return 0, err
		}
		return executed, m.effect(ctx, tx)
	})
}

func noopUpdate(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	return inTx(ctx, db, func(tx pgx.Tx) (answer, error) {
		var isNew bool
		err := tx.QueryRow(ctx, `
			INSERT INTO bench_noop (key) VALUES ($1::text)
			ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING xmax = 0`, m.id).Scan(&isNew)
		if err != nil || !isNew {
			return duplicate, err
		}
		return executed, m.effect(ctx, tx)
	})
}

func claimFirst(ctx context.Context, db *pgxpool.Pool, m message) (answer, error) {
	tag, err := db.Exec(ctx, `INSERT INTO bench_first (key) VALUES ($1::text) ON CONFLICT (key) DO NOTHING`, m.id)
	if err != nil || tag.RowsAffected() == 0 {
		return duplicate, err
	}
	return inTx(ctx, db, func(tx pgx.Tx) (answer, error) { return executed, m.effect(ctx, tx) })
}
