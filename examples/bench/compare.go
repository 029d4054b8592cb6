package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/upsert"
)

const (
	knownMessages = 100  // that were handled before their comparison
	known         = 1000 // rows that are there before theirs
)

func knownID(i int) string { return fmt.Sprintf("known_%d", i) }

// comparisons returns all of them, and fills the tables that they need.
func (b *bench) comparisons(ctx context.Context) ([]comparison, error) {
	first := comparison{
		title: "First delivery", about: "A new key (UUIDv7) and its effect, one INSERT, each in a transaction of its own.",
	}
	repeated := comparison{
		title: "Duplicate", about: "A key that was committed before. The reference asks in a second statement, as `Do` does.",
	}
	for _, r := range rivals() {
		for i := range knownMessages {
			if _, err := r.deliver(ctx, b.many, message{id: knownID(i)}); err != nil {
				return nil, err
			}
		}
		first.ways = append(first.ways, way{r.name, 1, func(ctx context.Context, db *pgxpool.Pool) error {
			a, err := r.deliver(ctx, db, message{id: ascending()})
			return expect(a, executed, err)
		}})
		repeated.ways = append(repeated.ways, way{r.name, 1, func(ctx context.Context, db *pgxpool.Pool) error {
			a, err := r.deliver(ctx, db, message{id: knownID(rand.IntN(knownMessages))})
			return expect(a, duplicate, err)
		}})
	}
	batches := comparison{
		title: "Batches", about: "New keys and their effects, by the message. " +
			"An operation is a batch; the reference takes one message at a time.",
		ways: []way{
			first.ways[0],
			{"`DoMany` of 100, effects as one pgx.Batch", 100, many(100, pipelined)},
			{"`DoMany` of 1,000, effects as one pgx.Batch", 1000, many(1000, pipelined)},
			{"`DoMany` of 1,000, effects as one statement", 1000, many(1000, unnested)},
		},
	}
	rows, err := b.upserts(ctx)
	return append([]comparison{first, repeated, batches}, rows...), err
}

func expect(got, want answer, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("the answer was %d, not %d", got, want)
	}
	return err
}

// many is an operation that claims n new keys by DoMany.
func many(n int, effects func(context.Context, pgx.Tx, []string) error) func(context.Context, *pgxpool.Pool) error {
	once := idem.Once{Table: dedup.Table{Name: "bench_batch"}}
	return func(ctx context.Context, db *pgxpool.Pool) error {
		ids, keys := make([]string, n), make([]idem.Key, n)
		for i := range ids {
			ids[i] = ascending()
			keys[i] = scope.Key(ids[i])
		}
		_, err := inTx(ctx, db, func(tx pgx.Tx) (answer, error) {
			results, err := once.DoMany(ctx, tx, keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
				todo := make([]string, len(fresh))
				for i, place := range fresh {
					todo[i] = ids[place]
				}
				return effects(ctx, tx, todo)
			})
			for _, r := range results {
				if err := expect(told(r.Outcome), executed, r.Err); err != nil {
					return 0, err
				}
			}
			return executed, err
		})
		return err
	}
}

// pipelined sends a statement for each message, all of them in one round trip.
func pipelined(ctx context.Context, tx pgx.Tx, ids []string) error {
	var batch pgx.Batch
	for _, id := range ids {
		batch.Queue(effectSQL, id)
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// unnested sends one statement for all.
func unnested(ctx context.Context, tx pgx.Tx, ids []string) error {
	_, err := tx.Exec(ctx, `INSERT INTO bench_effects (id, amount)
		SELECT id, 1200::int FROM unnest($1::text[]) AS e (id)`, ids)
	return err
}

type status struct {
	ID     string    `db:"id"`
	Status string    `db:"status"`
	At     time.Time `db:"at"`
	Rank   int       `db:"rank"`
}

const guard = ` ON CONFLICT (id) DO UPDATE SET status = excluded.status, at = excluded.at, rank = excluded.rank
	WHERE (t.at, t.rank) < (excluded.at, excluded.rank)`

// upserts compares package upsert with the statement that one would write by hand. That one does not say what it
// did.
func (b *bench) upserts(ctx context.Context) ([]comparison, error) {
	stmt := upsert.Into[status]("bench_status").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
	byStmt := func(ctx context.Context, db *pgxpool.Pool, rows []status, want upsert.Outcome) error {
		res, err := stmt.Exec(ctx, db, rows[0])
		overtaken := want == upsert.Updated && res.Outcome == upsert.Stale // by another worker's, of the same key
		if err == nil && res.Outcome != want && !overtaken {
			err = fmt.Errorf("the outcome was %v, not %v", res.Outcome, want)
		}
		return err
	}
	bare := func(ctx context.Context, db *pgxpool.Pool, rows []status, _ upsert.Outcome) error {
		r := rows[0]
		_, err := db.Exec(ctx, `INSERT INTO bench_status_hand AS t (id, status, at, rank)
			VALUES ($1::text, $2::text, $3::timestamptz, $4::int)`+guard,
			r.ID, r.Status, r.At, r.Rank)
		return err
	}
	byStmtMany := func(ctx context.Context, db *pgxpool.Pool, rows []status, want upsert.Outcome) error {
		sum, err := stmt.ExecMany(ctx, db, slices.Values(rows), nil)
		if err == nil && sum.Inserted != len(rows) && want == upsert.Inserted {
			err = fmt.Errorf("of %d rows: %+v", len(rows), sum)
		}
		return err
	}
	bareMany := func(ctx context.Context, db *pgxpool.Pool, rows []status, _ upsert.Outcome) error {
		n := len(rows)
		ids, states, ats, ranks := make([]string, n), make([]string, n), make([]time.Time, n), make([]int, n)
		for i, r := range rows {
			ids[i], states[i], ats[i], ranks[i] = r.ID, r.Status, r.At, r.Rank
		}
		_, err := db.Exec(ctx, `INSERT INTO bench_status_hand AS t (id, status, at, rank)
			SELECT id, status, at, rank
			  FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::int[]) AS e (id, status, at, rank)`+guard,
			ids, states, ats, ranks)
		return err
	}

	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var clock atomic.Int64
	fresh := func(int) status { return status{ascending(), "active", noon, 1} }
	newer := func(i int) status {
		return status{knownID(i), "active", noon.Add(time.Duration(clock.Add(1)) * time.Millisecond), 1}
	}
	stale := func(i int) status { return status{knownID(i), "active", noon.Add(-time.Hour), 1} }
	var before []status
	for i := range known {
		before = append(before, status{knownID(i), "new", noon, 1})
	}
	if err := byStmtMany(ctx, b.many, before, upsert.Inserted); err != nil {
		return nil, err
	}
	if err := bareMany(ctx, b.many, before, upsert.Inserted); err != nil {
		return nil, err
	}

	type call = func(context.Context, *pgxpool.Pool, []status, upsert.Outcome) error
	operation := func(
		do call, n int, row func(i int) status, want upsert.Outcome,
	) func(context.Context, *pgxpool.Pool) error {
		return func(ctx context.Context, db *pgxpool.Pool) error {
			rows, from := make([]status, n), rand.IntN(known-n+1)
			for i := range rows {
				rows[i] = row(from + i)
			}
			return do(ctx, db, rows, want)
		}
	}
	var all []comparison
	for _, c := range []struct {
		what string
		n    int
		row  func(i int) status
		want upsert.Outcome
	}{
		{"new", 1, fresh, upsert.Inserted},
		{"newer", 1, newer, upsert.Updated},
		{"stale", 1, stale, upsert.Stale},
		{"new", 1000, fresh, upsert.Inserted},
		{"newer", 1000, newer, upsert.Updated},
		{"stale", 1000, stale, upsert.Stale},
	} {
		if c.n == 1 {
			all = append(all, comparison{
				title: "Upsert of one row, " + c.what,
				about: "The bare statement has the same guard, and does not say what it did.",
				ways: []way{
					{"the bare statement", 1, operation(bare, 1, c.row, c.want)},
					{"`upsert` Exec", 1, operation(byStmt, 1, c.row, c.want)},
				},
			})
			continue
		}
		all = append(all, comparison{
			title: "Upsert of 1,000 rows, " + c.what,
			about: "An operation is 1,000 rows. The bare statement is one upsert over `unnest`: " +
				"it fails where a key is there twice, and can deadlock with another.",
			ways: []way{
				{"the bare statement", c.n, operation(bareMany, c.n, c.row, c.want)},
				{"`upsert` ExecMany", c.n, operation(byStmtMany, c.n, c.row, c.want)},
			},
		})
	}
	return all, nil
}

// ascending returns a UUIDv7 of now: such keys follow each other, and meet at one end of an index.
func ascending() string {
	var b [16]byte
	millis := uint64(time.Now().UnixMilli()) //nolint:gosec // after 1970
	binary.BigEndian.PutUint64(b[:], millis<<16|uint64(rand.Uint32()&0xfff)|0x7000)
	binary.BigEndian.PutUint64(b[8:], rand.Uint64()>>2|1<<63)
	return uuidText(b)
}

// scattered returns a UUIDv4: such keys meet everywhere in an index.
func scattered() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], rand.Uint64()&^0xf000|0x4000)
	binary.BigEndian.PutUint64(b[8:], rand.Uint64()>>2|1<<63)
	return uuidText(b)
}

func uuidText(b [16]byte) string {
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
