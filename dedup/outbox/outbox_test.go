package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What is appended is published as it is, whatever mode pgx is in; what is rolled back is not.
func TestEveryMode(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.PoolConfig(t, cfg)
			table := outbox.Table{Name: `"odd.schema"."out""box"`}
			_, err := pool.Exec(ctx, `CREATE SCHEMA "odd.schema"`)
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, outbox.Migrate(ctx, pool, table))
			}
			id := outbox.NewID()
			want := []outbox.Event{
				{
					ID: id, Topic: "tópico", Key: `k"{}\,é`, Payload: all,
					Headers: map[string]string{"traceparent": "00-ab-cd-01", "<&\u2028>": `"\`},
				},
				{ID: outbox.NewID(), Topic: "t", Key: `k"{}\,é`, Payload: []byte{}},
				{ID: outbox.NewID(), Topic: "t", Payload: bytes.Repeat([]byte{0}, 100_000)},
			}
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, table.Append(ctx, tx, ev("gone", 1)))
			require.NoError(t, tx.Rollback(ctx))
			require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				nested, err := tx.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, table.Append(ctx, nested, ev("gone", 2)))
				require.NoError(t, nested.Rollback(ctx))
				return errors.Join(table.Append(ctx, tx), table.Append(ctx, tx, want[0]), table.Append(ctx, tx, want[1:]...))
			}))
			b := &broker{}
			s := drain(t, pool, outbox.Relay{Table: table, Publisher: b})
			require.Equal(t, outbox.Stats{Published: 3}, s)
			got := map[string]outbox.Event{}
			for _, e := range b.got {
				require.WithinDuration(t, time.Now(), e.AppendedAt, time.Hour)
				require.Equal(t, 1, e.Attempt)
				e.AppendedAt, e.Attempt = time.Time{}, 0
				got[e.ID] = e
			}
			for _, e := range want {
				require.Equal(t, e, got[e.ID])
			}
			require.Equal(t, []string{`k"{}\,é:` + string(all), `k"{}\,é:`}, b.payloads(`k"{}\,é`))
			require.Zero(t, drain(t, pool, outbox.Relay{Table: table, Publisher: b}))
			lag, err := table.Lag(ctx, pool)
			require.NoError(t, err)
			require.Zero(t, lag)
			require.NoError(t, outbox.Verify(ctx, pool, table))
		})
	}
}

// What cannot be stored is refused before anything is sent, and says nothing of the content.
func TestInvalidEvents(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	long := strings.Repeat("x", 1025)
	for name, e := range map[string]outbox.Event{
		"no topic":    {Key: "secret"},
		"long topic":  {Topic: long[:256]},
		"long key":    {Topic: "t", Key: long},
		"NUL":         {Topic: "t", Key: "secret\x00"},
		"not UTF-8":   {Topic: "secret\xff"},
		"header":      {Topic: "t", Headers: map[string]string{"a": "secret\x00"}},
		"header name": {Topic: "t", Headers: map[string]string{"secret\xff": ""}},
		"payload":     {Topic: "t", Payload: make([]byte, outbox.MaxPayloadBytes+1)},
		"headers":     {Topic: "t", Headers: map[string]string{"a": strings.Repeat("secret", outbox.MaxHeaderBytes/6)}},
		"id":          {Topic: "t", ID: "secret"},
		"upper case":  {Topic: "t", ID: strings.ToUpper(outbox.NewID())},
	} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		err = outbox.Append(t.Context(), tx, ev("a", 1), e)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, outbox.Append(t.Context(), tx, ev("a", 1)), "the transaction goes on")
		require.NoError(t, tx.Rollback(t.Context()))
	}
	longest := outbox.Event{Topic: long[:255], Key: long[:1024]}
	add(t, pool, longest)
	_, err := outbox.Table{}.Discard(t.Context(), pool, "secret")
	require.ErrorIs(t, err, outbox.ErrInvalid)
}

// An event is never appended alone: where the transaction has ended, nothing is stored.
func TestAppendAfterTheEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, end)
		require.NoError(t, err)
		require.ErrorIs(t, outbox.Append(ctx, tx, ev("a", 1), ev("a", 2)), pg.ErrTxEnded, end)
		require.ErrorIs(t, outbox.Append(ctx, tx, ev("a", 1)), pg.ErrTxEnded, end)
		_ = tx.Rollback(ctx)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox`))
}

func TestSettings(t *testing.T) {
	t.Parallel()
	none := outbox.PublisherFunc(func(context.Context, []outbox.Event) error { return nil })
	for _, r := range []outbox.Relay{
		{},
		{Publisher: none, Batch: -1},
		{Publisher: none, Workers: -1},
		{Publisher: none, MaxAttempts: -1},
		{Publisher: none, Lease: -1},
		{Publisher: none, Lease: 2 * time.Hour},
		{Publisher: none, Poll: -1},
		{Publisher: none, MinRetry: 2, MaxRetry: 1},
		{Publisher: none, Table: outbox.Table{Name: "a.b.c"}},
		{Publisher: none, Table: outbox.Table{Name: strings.Repeat("x", 58)}},
	} {
		require.Error(t, r.Validate(), "%+v", r)
		require.Error(t, r.Run(t.Context(), nil))
		_, err := r.Drain(t.Context(), nil)
		require.Error(t, err)
	}
	require.NoError(t, outbox.Relay{Publisher: none, MaxRetry: math.MaxInt64}.Validate())
	require.NoError(t, outbox.Table{Name: strings.Repeat("x", 57)}.Validate())
	require.Panics(t, func() { outbox.Table{Name: "a.b.c"}.DDL() })
}

// Each thing that Verify asks for is missed, and what it says fixes what SQL can fix.
func TestVerify(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		breaks string
		fixed  bool
	}{
		// As after a dump of the data alone, or where a logical replica took over.
		"numbers out of order, again": {`ALTER SEQUENCE outbox_seq_seq RESTART`, true},
		"table missing":               {`DROP TABLE outbox_lanes`, true},
		"not our table":               {`DROP TABLE outbox; CREATE VIEW outbox AS SELECT 1`, false},
		"not logged":                  {`ALTER TABLE outbox SET UNLOGGED`, true},
		"column missing":              {`ALTER TABLE outbox DROP COLUMN attempts`, false},
		"column type":                 {`ALTER TABLE outbox ALTER COLUMN key TYPE text COLLATE "default"`, false},
		"index missing":               {`DROP INDEX outbox_due`, true},
		"numbers out of order":        {`ALTER TABLE outbox ALTER COLUMN seq SET CACHE 20`, true},
		"lane missing":                {`DELETE FROM outbox_lanes WHERE lane = 3`, true},
		"trigger": {`CREATE FUNCTION nop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER nop BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION nop()`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind, _, _ := strings.Cut(name, ",")
			pool := migrated(t)
			add(t, pool, ev("k", 1), ev("l", 1))
			require.NoError(t, outbox.Verify(t.Context(), pool))
			_, err := pool.Exec(t.Context(), tc.breaks)
			require.NoError(t, err)
			err = outbox.Verify(t.Context(), pool)
			require.ErrorContains(t, err, ": "+kind+": ")
			if tc.fixed {
				for _, p := range problems(t, err) {
					_, err := pool.Exec(t.Context(), p)
					require.NoError(t, err, p)
				}
				require.NoError(t, outbox.Verify(t.Context(), pool))
			}
		})
	}
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `CREATE TABLE outbox (id int)`)
	require.NoError(t, err)
	require.ErrorContains(t, outbox.Migrate(t.Context(), pool), "not our table")
	require.Equal(t, 1, count(t, pool,
		`SELECT count(*) FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0`))
	require.NoError(t, outbox.Migrate(t.Context(), pool, outbox.Table{Name: "events"}, outbox.Table{Name: "others"}))
}

// Several processes that migrate at once find one table.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	errs := make(chan error)
	for range 6 {
		go func() { errs <- outbox.Migrate(t.Context(), pool) }()
	}
	for range 6 {
		require.NoError(t, <-errs)
	}
	require.Equal(t, 32, count(t, pool, `SELECT count(*) FROM outbox_lanes`))
	_, err := pool.Exec(t.Context(), outbox.Table{}.DDL(), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err, "it can be run again")
}
