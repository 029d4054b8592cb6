package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever claims.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for _, path := range pgtest.ShadowPaths() {
		for name, layout := range map[string]dedup.Layout{
			"plain": dedup.Plain, "hash": dedup.Hash(2),
			"weekly": dedup.Weekly,
		} {
			t.Run(path+"/"+name, func(t *testing.T) {
				t.Parallel()
				captureLife(t, path, dedup.Table{Name: "app.events", Layout: layout, Retention: 21 * 24 * time.Hour})
			})
		}
	}
}

// captureLife is everything that can happen to a key, and to its table.
func captureLife(t *testing.T, path string, table dedup.Table) {
	ctx := t.Context()
	pool := pgtest.Shadowed(t, path)
	require.NoError(t, dedup.Migrate(ctx, pool, table))
	require.NoError(t, dedup.Migrate(ctx, pool, table), "again")
	require.NoError(t, dedup.Verify(ctx, pool, table))
	_, err := pool.Exec(ctx, `CREATE TABLE app.effects (what pg_catalog.text)`)
	require.NoError(t, err)

	scope := idem.Scope{Source: "s", Operation: "o"}
	key := func(id string) idem.Key { return scope.Key(id).OccurredAt(time.Now()) }
	fn := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO app.effects (what) VALUES ($1)`, "x")
		return err
	}
	once := idem.Once{Table: table}
	inTx := func(f func(tx pgx.Tx) error) { requireOurs(t, pgx.BeginFunc(ctx, pool, f)) }
	keys := []idem.Key{
		key("timed"), key("future").OccurredAt(time.Now().Add(240 * time.Hour)),
		key("past").OccurredAt(time.Now().Add(-10000 * time.Hour)),
	}
	if table.Layout != dedup.Weekly {
		keys = append(keys, scope.Key("plain"))
	}
	for _, o := range []idem.Once{once, {Table: table, MaxWait: time.Second}} {
		for _, k := range keys {
			for range 2 {
				_, err := o.Run(ctx, pool, k.WithPayload([]byte("p")), fn)
				requireOurs(t, err)
				inTx(func(tx pgx.Tx) error { _, err := o.Do(ctx, tx, k, fn); return err })
			}
			_, err := o.Lookup(ctx, pool, k)
			requireOurs(t, err)
			inTx(func(tx pgx.Tx) error { return o.Forget(ctx, tx, k) })
		}
	}

	var batch []idem.Key
	for _, o := range []idem.Once{once, {Table: table, MaxWait: time.Second}} {
		batch = append(batch, key(fmt.Sprint("batch ", o.MaxWait)), key("past").OccurredAt(time.Unix(1, 0)))
		for range 2 {
			inTx(func(tx pgx.Tx) error {
				_, err := o.DoMany(ctx, tx, batch, func(context.Context, pgx.Tx, []int) error { return nil })
				return err
			})
		}
	}

	returning := idem.Returning[string]{Once: once}
	returned := key("returned")
	for range 2 {
		_, _, err = returning.Run(ctx, pool, returned, func(context.Context, pgx.Tx) (string, error) { return "v", nil })
		require.NoError(t, err)
	}

	reserve := func(id string, lease time.Duration) (idem.Key, idem.Reservation) {
		k := key(id)
		r, _, err := once.Reserve(ctx, pool, k, lease)
		require.NoError(t, err)
		return k, r
	}
	k, r := reserve("confirmed", time.Hour)
	require.NoError(t, r.Extend(ctx, pool, time.Hour))
	_, _, err = once.Reserve(ctx, pool, k, time.Hour)
	require.ErrorIs(t, err, idem.ErrInProgress)
	inTx(func(tx pgx.Tx) error { return r.Confirm(ctx, tx, nil) })
	_, r = reserve("failed", time.Hour)
	require.NoError(t, r.Fail(ctx, pool, nil))
	_, r = reserve("void", time.Hour)
	require.NoError(t, r.Void(ctx, pool))
	_, r = reserve("released", time.Hour)
	require.NoError(t, r.Release(ctx, pool))
	k, _ = reserve("run out", time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	r, _, err = once.Reserve(ctx, pool, k, time.Hour)
	require.NoError(t, err, "taken over")
	require.NoError(t, r.Release(ctx, pool), "after an attempt that may have been sent")
	open, err := once.Pending(ctx, pool, idem.Scope{}, 10)
	require.NoError(t, err)
	require.Len(t, open, 1)

	answers := 0
	call := idem.Call[string]{
		Once: once, Lease: time.Minute, Remembers: time.Hour,
		Send: func(context.Context, string) (string, error) {
			if answers++; answers == 1 {
				return "", errors.New("no answer")
			}
			return "paid", nil
		},
		Apply: func(ctx context.Context, tx pgx.Tx, _ string) error { return fn(ctx, tx) },
	}
	called := key("called")
	_, _, err = call.Run(ctx, pool, called)
	require.Error(t, err)
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		_, out, err := call.Run(ctx, pool, called)
		require.NoError(t, err)
		require.Equal(t, want, out)
	}

	_, err = table.Maintain(ctx, pool)
	require.NoError(t, err)
	if table.Layout != dedup.Weekly {
		_, err = pool.Exec(ctx, `UPDATE app.events SET processed_at = '2000-01-01' WHERE lease_until IS NULL `)
		require.NoError(t, err)
		s, err := dedup.Cleaner{Table: table}.Count(ctx, pool)
		require.NoError(t, err)
		require.NotZero(t, s.Deleted)
		_, err = pool.Exec(ctx, table.PurgeSQL(), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		p, err := table.Purge(ctx, pool)
		require.NoError(t, err)
		require.Zero(t, p.Deleted, "the block has deleted it")
	} else {
		_, err = pool.Exec(ctx, `CREATE TABLE app.events_w20200106 PARTITION OF app.events FOR VALUES FROM ('2020-01-06') TO ('2020-01-13')`)
		require.NoError(t, err)
		s, err := table.Maintain(ctx, pool)
		require.NoError(t, err)
		require.Len(t, s.Dropped, 1)
	}
	require.Greater(t, pgtest.Captured(t, pool), 20)
}

// requireOurs lets errors pass that the library has for such keys.
func requireOurs(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, idem.ErrExpired) || errors.Is(err, idem.ErrFuture) || errors.Is(err, idem.ErrNotFound) {
		return
	}
	require.NoError(t, err)
}
