package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What is stored comes back as it was, in whatever mode pgx is; what is rolled back does not; a duplicate is told, in
// the same transaction and in another one.
func TestEveryMode(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	large := make([]byte, 3<<20)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.PoolConfig(t, cfg)
			table := inbox.Table{Name: `"odd.schema"."in""box"`}
			execSQL(t, pool, `CREATE SCHEMA "odd.schema"`)
			for range 2 {
				require.NoError(t, inbox.Migrate(ctx, pool, table))
			}
			want := []inbox.Message{
				{
					Source: "é", Operation: "%/", ID: `a"{}\,é/%`, Key: `k"{}\,é`, Body: all,
					Headers: map[string]string{
						"traceparent": "00-ab-cd-01", "<&\u2028>": `"\`, "nul": "a\x00b", "raw": string(all), string(all): "",
						"base64:x": "y",
					},
				},
				{Source: "s", Operation: "o", ID: "empty", Key: `k"{}\,é`, Body: []byte{}},
				{Source: "s", Operation: "o", ID: "large", Body: large},
			}
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			out, err := table.Store(ctx, tx, want[0])
			require.NoError(t, err)
			require.Equal(t, inbox.Stored, out)
			require.NoError(t, tx.Rollback(ctx))
			require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				nested, err := tx.Begin(ctx)
				require.NoError(t, err)
				_, err = table.Store(ctx, nested, want[1])
				require.NoError(t, err)
				require.NoError(t, nested.Rollback(ctx))
				for _, expected := range []inbox.Outcome{inbox.Stored, inbox.Duplicate} {
					out, err := table.Store(ctx, tx, want[0])
					require.NoError(t, err)
					require.Equal(t, expected, out)
				}
				return nil
			}))
			for _, m := range want {
				out, err := table.Store(ctx, pool, m)
				require.NoError(t, err)
				require.Equal(t, m.ID == want[0].ID, out == inbox.Duplicate)
			}
			got := map[string]inbox.Message{}
			s, err := inbox.Worker{Table: table}.Drain(ctx, pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
				require.WithinDuration(t, time.Now(), m.ReceivedAt, time.Hour)
				require.Equal(t, 1, m.Attempt)
				require.Equal(t, inbox.Waiting, m.State)
				m.ReceivedAt, m.Attempt, m.State = time.Time{}, 0, 0
				got[m.ID] = m
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, inbox.Stats{Handled: 3}, s)
			for _, m := range want {
				require.Equal(t, m, got[m.ID])
			}
			listed, err := table.List(ctx, pool, inbox.Filter{State: inbox.Handled, IDs: []string{want[0].ID}}, 2)
			require.NoError(t, err)
			require.Len(t, listed, 1)
			require.Equal(t, want[0].Headers, listed[0].Headers)
			require.NoError(t, inbox.Verify(ctx, pool, table))
		})
	}
}

// What cannot be a key of idem's cannot be a message's name, and nothing else is refused. The error says nothing of
// the content.
func TestNames(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	long := strings.Repeat("x", 1025)
	texts := []string{
		"", " ", "\t\n", "\u00a0", "a", " a ", "é", "a\x00", "\xff", "a\xc3", "/", "%",
		long[:255], long[:256], long[:1024], long, strings.Repeat("/", 341), strings.Repeat("/", 342),
		strings.Repeat("%", 341), strings.Repeat("%", 342), strings.Repeat("é", 127), strings.Repeat("é", 128),
	}
	stored, refused := 0, 0
	for i, text := range texts {
		for j, m := range []inbox.Message{
			{Source: text, Operation: "o", ID: "1"},
			{Source: "s", Operation: text, ID: "1"},
			{Source: "s", Operation: "o", ID: text},
		} {
			want := idem.Scope{Source: m.Source, Operation: m.Operation}.Key(m.ID).Validate()
			out, err := inbox.Store(t.Context(), pool, m)
			if want != nil {
				refused++
				require.ErrorIs(t, err, inbox.ErrInvalid, "%d %d: idem says %v", i, j, want)
				require.Zero(t, out)
				continue
			}
			stored++
			require.NoError(t, err, "%d %d", i, j)
			require.Equal(t, inbox.Stored, out)
		}
	}
	require.Greater(t, stored, 20)
	require.Greater(t, refused, 20)
	for name, m := range map[string]inbox.Message{
		"long key": msg(long, "k"), "NUL": msg("secret\x00", "k"), "not UTF-8": msg("secret\xff", "k"),
		"id": {Source: "s", Operation: "o", ID: "secret\x00"},
	} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = inbox.Store(t.Context(), tx, m)
		require.ErrorIs(t, err, inbox.ErrInvalid, name)
		require.NotContains(t, err.Error(), "secret")
		store(t, tx, msg("a", "k")) // the transaction goes on
		require.NoError(t, tx.Rollback(t.Context()))
	}
	store(t, pool, msg(long[:1024], "longest key"))
}

// A message is never stored alone: where the transaction has ended, nothing is.
func TestStoreAfterTheEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, end)
		require.NoError(t, err)
		_, err = inbox.Store(ctx, tx, msg("", "1"))
		require.ErrorIs(t, err, pg.ErrTxEnded, end)
		_ = tx.Rollback(ctx)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM inbox`))
}

// Of many that store one message at once, one has stored it, in whatever isolation; those that cannot tell say so.
func TestStoreAtOnce(t *testing.T) {
	t.Parallel()
	for _, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		pool := migrated(t)
		const rounds, rivals = 20, 4
		for n := range rounds {
			outs := make(chan inbox.Outcome, rivals)
			for range rivals {
				go func() {
					var out inbox.Outcome
					err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: iso}, func(tx pgx.Tx) (err error) {
						out, err = inbox.Store(t.Context(), tx, msg("", fmt.Sprint(n)))
						return err
					})
					if err != nil {
						out = 0
					}
					outs <- out
				}()
			}
			told := map[inbox.Outcome]int{}
			for range rivals {
				told[<-outs]++
			}
			require.Equal(t, 1, told[inbox.Stored], "%s: %v", iso, told)
			if iso == pgx.ReadCommitted {
				require.Equal(t, rivals-1, told[inbox.Duplicate])
			}
		}
		require.Equal(t, rounds, count(t, pool, `SELECT count(*) FROM inbox`))
	}
}

// No error of the database's is a duplicate: neither another unique constraint, nor a row that a trigger keeps away,
// nor a table that is not there.
func TestErrorsAreNoDuplicates(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]string{
		"other unique constraint": `CREATE UNIQUE INDEX ON inbox (body); INSERT INTO inbox (source, operation, message_id, key, body) VALUES ('s', 'o', 'other', '', '1')`,
		"trigger": `CREATE FUNCTION nop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER nop BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION nop()`,
		"raises 23505": `CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE unique_violation; END';
			CREATE TRIGGER bad BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION bad()`,
		"no table":      `DROP TABLE inbox`,
		"no constraint": `ALTER TABLE inbox DROP CONSTRAINT inbox_pkey`,
	} {
		pool := migrated(t)
		execSQL(t, pool, breaks)
		out, err := inbox.Store(t.Context(), pool, msg("", "1"))
		require.Error(t, err, name)
		require.Zero(t, out, name)
	}
	// A read-only transaction is its caller's wish; a session that is read-only by default is met by TestDefaults.
	tx, err := migrated(t).BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	require.NoError(t, err)
	out, err := inbox.Store(t.Context(), tx, msg("", "1"))
	require.Error(t, err, "read only")
	require.Zero(t, out, "read only")
	require.NoError(t, tx.Rollback(t.Context()))
}

// What comes again is a duplicate in every state, and no state is part of the constraint.
func TestDuplicateInEveryState(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	table := inbox.Table{Keep: time.Hour, KeepBodies: time.Nanosecond}
	m := msg("", "1")
	store(t, pool, m)
	again(t, pool, m) // waiting
	s, err := inbox.Worker{MaxAttempts: 1}.Drain(ctx, pool, func(context.Context, pgx.Tx, inbox.Message) error {
		again(t, pool, m) // being handled
		return errors.New("fails")
	})
	require.ErrorContains(t, err, "fails")
	require.Equal(t, inbox.Stats{Failed: 1, Dead: 1}, s)
	again(t, pool, m) // dead
	n, err := table.Replay(ctx, pool, inbox.Filter{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	again(t, pool, m) // waiting again
	_, err = inbox.Worker{MaxAttempts: 2}.Drain(ctx, pool,
		func(context.Context, pgx.Tx, inbox.Message) error { return errors.New("fails") })
	require.Error(t, err)
	again(t, pool, m) // waiting for its next attempt
	execSQL(t, pool, `UPDATE inbox SET due_at = now()`)
	drain(t, pool, func(context.Context, pgx.Tx, inbox.Message) error { return nil })
	again(t, pool, m) // handled
	p, err := table.Purge(ctx, pool)
	require.NoError(t, err)
	require.Equal(t, inbox.Purged{Bodies: 1}, p)
	require.Nil(t, one(t, pool, inbox.Handled).Body)
	again(t, pool, m) // without its body

	d := msg("", "2")
	store(t, pool, d)
	_, err = inbox.Worker{MaxAttempts: 1}.Drain(ctx, pool,
		func(context.Context, pgx.Tx, inbox.Message) error { return errors.New("fails") })
	require.Error(t, err)
	n, err = table.Discard(ctx, pool, inbox.Filter{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	again(t, pool, d) // discarded
	require.Zero(t, drain(t, pool, insert))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM inbox`))

	// The same id of another source, or for another operation, is another message.
	store(t, pool, inbox.Message{Source: "s2", Operation: "o", ID: "1"},
		inbox.Message{Source: "s", Operation: "o2", ID: "1"})
}

// A duplicate writes nothing: no row, no dead row, no number, no transaction id.
func TestDuplicatesWriteNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	store(t, pool, msg("k", "1"))
	before := count(t, pool, `SELECT last_value FROM inbox_seq_seq`)
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for range 100 {
			out, err := inbox.Store(ctx, tx, msg("k", "1"))
			require.NoError(t, err)
			require.Equal(t, inbox.Duplicate, out)
		}
		var assigned bool
		require.NoError(t, tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned))
		require.False(t, assigned)
		return nil
	}))
	require.Equal(t, before, count(t, pool, `SELECT last_value FROM inbox_seq_seq`))
}

// The observer is told of what was stored, and holds no content.
func TestObserver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	o := &observer{}
	table := inbox.Table{Observer: o, Keep: time.Nanosecond}
	m := msg("", "1")
	for range 2 {
		_, err := table.Store(ctx, pool, m)
		require.NoError(t, err)
	}
	fails := true
	h := func(context.Context, pgx.Tx, inbox.Message) error {
		if fails {
			return errors.New("fails")
		}
		return nil
	}
	w := quick()
	w.Table, w.MaxAttempts = table, 2
	_, err := w.Drain(ctx, pool, h)
	require.Error(t, err)
	_, err = table.Replay(ctx, pool, inbox.Filter{})
	require.NoError(t, err)
	fails = false
	_, err = w.Drain(ctx, pool, h)
	require.NoError(t, err)
	_, err = table.Purge(ctx, pool)
	require.NoError(t, err)
	require.Equal(t, []dedup.Outcome{
		dedup.Stored, dedup.Duplicate, dedup.Failed, dedup.DeadLetter, dedup.Executed, dedup.Purged,
	}, o.whats())
	for _, e := range o.events[:5] {
		require.Equal(t, []string{"inbox", "s", "o"}, []string{e.Table, e.Source, e.Operation})
		require.Positive(t, e.Waited)
	}
	require.Positive(t, o.events[1].Age)
	require.EqualValues(t, 1, o.events[5].Rows)
}
