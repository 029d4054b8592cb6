package idem_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// Any table that PostgreSQL can have, and an empty search path.
func TestTableNames(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	admin := pgtest.PoolConfig(t, cfg.Copy())
	_, err := admin.Exec(t.Context(), `CREATE SCHEMA "App.v2"; CREATE SCHEMA plain`)
	require.NoError(t, err)
	cfg.ConnConfig.RuntimeParams["search_path"] = ""
	pool := pgtest.PoolConfig(t, cfg)
	for _, name := range []string{
		"public.processed_events", "plain.order", `"App.v2"."odd.name"`, "plain.MixedCase", `plain."a""b"`,
		"plain." + strings.Repeat("t", 63), strings.Repeat("s", 63) + "." + strings.Repeat("é", 31) + "x", "plain.excluded",
	} {
		if schema, _, _ := strings.Cut(name, "."); len(schema) == 63 {
			_, err := admin.Exec(t.Context(), `CREATE SCHEMA `+schema)
			require.NoError(t, err)
		}
		once := idem.Once{Table: dedup.Table{Name: name}}
		require.NoError(t, dedup.Migrate(t.Context(), pool, once.Table), name)
		require.NoError(t, dedup.Verify(t.Context(), pool, once.Table), name)
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := once.Run(t.Context(), pool, stripe.Key("1"), nothing)
			require.NoError(t, err, name)
			require.Equal(t, want, out, name)
		}
		_, err := once.Lookup(t.Context(), pool, stripe.Key("1"))
		require.NoError(t, err, name)
		everyMove(t, once, pool)
	}
	// Without a schema there is nothing to find.
	_, err = idem.Run(t.Context(), pool, stripe.Key("1"), nothing)
	require.ErrorContains(t, err, "dedup.Migrate")
}

// The role of a running program needs four rights, and Migrate is another role's.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	pool := migrated(t, pgtest.Pool(t))
	app := asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events, effects TO {role}`)
	require.NoError(t, dedup.Verify(t.Context(), app))
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		out, err := idem.Run(t.Context(), app, stripe.Key("1"), nothing)
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), app,
		func(tx pgx.Tx) error { return idem.Once{}.Forget(t.Context(), tx, stripe.Key("1")) }))
	everyMove(t, idem.Once{}, app)

	for _, missing := range []string{"SELECT", "INSERT"} {
		poor := asRole(t, pool, strings.Replace(`GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO {role}; REVOKE right ON processed_events FROM {role}`, "right", missing, 1))
		_, err := idem.Run(t.Context(), poor, stripe.Key("2"), nothing)
		require.True(t, pgerr.Is(err, "42501"), "%s: %v", missing, err)
		require.ErrorContains(t, err, "SELECT, INSERT, UPDATE and DELETE")
		require.False(t, idem.Retryable(err))
		var bad *dedup.VerifyError
		require.ErrorAs(t, dedup.Verify(t.Context(), poor), &bad)
		require.Equal(t, "rights missing", bad.Problems[0].Kind.String())
	}
	// These are not needed by every call. Verify says so before the first one that needs them.
	for _, missing := range []string{"UPDATE", "DELETE"} {
		poor := asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO {role}; REVOKE `+missing+
			` ON processed_events FROM {role}`)
		var bad *dedup.VerifyError
		require.ErrorAs(t, dedup.Verify(t.Context(), poor), &bad, missing)
		require.Equal(t, "rights missing", bad.Problems[0].Kind.String())
	}
}

// everyMove makes each statement of reservations and values once.
func everyMove(t *testing.T, once idem.Once, pool *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	call := idem.Call[string]{
		Once: once, Lease: time.Hour, Remembers: 2 * time.Hour,
		Send: func(context.Context, string) (string, error) { return "answer", nil },
	}
	broken := call
	broken.Send = func(context.Context, string) (string, error) { return "", io.ErrUnexpectedEOF }
	key := stripe.Key("moves", "call").OccurredAt(time.Now())
	_, _, err := broken.Run(ctx, pool, key)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	open, err := once.Pending(ctx, pool, idem.Scope{}, 10)
	require.NoError(t, err)
	require.Len(t, open, 1)
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		v, out, err := call.Run(ctx, pool, key)
		require.NoError(t, err)
		require.Equal(t, want, out)
		require.Equal(t, "answer", v)
	}
	for name, move := range map[string]func(idem.Reservation) error{
		"extend and void": func(r idem.Reservation) error {
			return errors.Join(r.Extend(ctx, pool, 2*time.Hour), r.Void(ctx, pool))
		},
		"release": func(r idem.Reservation) error { return r.Release(ctx, pool) },
		"fail":    func(r idem.Reservation) error { return r.Fail(ctx, pool, []byte("no")) },
	} {
		r, _, err := once.Reserve(ctx, pool, stripe.Key("moves", name), time.Hour)
		require.NoError(t, err, name)
		require.NoError(t, move(r), name)
	}
	v, out, err := idem.Returning[int]{Once: once}.Run(ctx, pool, stripe.Key("moves", "value"),
		func(context.Context, pgx.Tx) (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
	require.Equal(t, 7, v)
}

// asRole returns a pool whose sessions have a role of their own with these rights.
func asRole(t *testing.T, pool *pgxpool.Pool, grants string) *pgxpool.Pool {
	t.Helper()
	var role string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT 'pgonce_app_' || md5(random()::text)`).Scan(&role))
	_, err := pool.Exec(t.Context(), strings.ReplaceAll(`CREATE ROLE {role}; `+grants, "{role}", role))
	require.NoError(t, err)
	cfg := pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["role"] = role
	app, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		app.Close()
		_, err := pool.Exec(context.Background(),
			strings.ReplaceAll(`DROP OWNED BY {role}; DROP ROLE {role}`, "{role}", role))
		require.NoError(t, err)
	})
	return app
}

// Row level security: a policy for INSERT alone makes the claim fail, and a row that the role cannot see is neither
// insertable nor readable. Both are errors, never an outcome; Verify says so as that role.
func TestRowSecurity(t *testing.T) {
	for name, c := range map[string]struct {
		policy, code string
	}{
		"INSERT alone":  {`CREATE POLICY p ON processed_events FOR INSERT WITH CHECK (true)`, "42501"},
		"invisible row": {`CREATE POLICY p ON processed_events USING (source <> 'stripe') WITH CHECK (true)`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t, pgtest.Pool(t))
			out, err := idem.Run(t.Context(), pool, stripe.Key("1"), nothing)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			_, err = pool.Exec(t.Context(), `ALTER TABLE processed_events ENABLE ROW LEVEL SECURITY; `+c.policy)
			require.NoError(t, err)
			app := asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO {role}`)
			out, err = idem.Run(t.Context(), app, stripe.Key("1"), func(context.Context, pgx.Tx) error {
				t.Error("fn was called")
				return nil
			})
			require.Zero(t, out)
			require.Error(t, err)
			if c.code != "" {
				require.Equal(t, c.code, pgerr.Code(err))
			}
			require.ErrorContains(t, err, "row security")
			require.False(t, idem.Retryable(err))
			_, out, err = idem.Once{}.Reserve(t.Context(), app, stripe.Key("1"), time.Hour)
			require.Zero(t, out)
			require.ErrorContains(t, err, "row security")
			require.False(t, idem.Retryable(err))
			var bad *dedup.VerifyError
			require.ErrorAs(t, dedup.Verify(t.Context(), app), &bad)
			require.Equal(t, "row security", bad.Problems[0].Kind.String())
		})
	}
}

// What a server or role may have set for its sessions.
func TestSessionDefaults(t *testing.T) {
	for _, c := range []struct{ name, value string }{
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_isolation", "repeatable read"},
		{"default_transaction_isolation", "serializable"},
		{"synchronous_commit", "off"},
		{"TimeZone", "Asia/Kathmandu"},
		{"DateStyle", "German, DMY"},
		{"IntervalStyle", "iso_8601"},
		{"extra_float_digits", "-15"},
		{"bytea_output", "escape"},
		{"statement_timeout", "30s"},
	} {
		t.Run(c.name+" "+c.value, func(t *testing.T) {
			for _, mode := range modes() {
				t.Run(mode.String(), func(t *testing.T) {
					t.Parallel()
					cfg := pgtest.Config(t)
					cfg.ConnConfig.DefaultQueryExecMode = mode
					cfg.ConnConfig.RuntimeParams[c.name] = c.value
					pool := migrated(t, pgtest.PoolConfig(t, cfg))
					once := idem.Once{MaxWait: 1500e6}
					key := stripe.Key("1").WithPayload([]byte("a"))
					for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
						out, err := once.Run(t.Context(), pool, key, nothing)
						require.NoError(t, err)
						require.Equal(t, want, out)
					}
					_, err := once.Run(t.Context(), pool, key.WithPayload([]byte("b")), nothing)
					require.ErrorIs(t, err, idem.ErrPayloadMismatch)
					require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
						out, err := once.Do(t.Context(), tx, stripe.Key("2"), nothing)
						require.Equal(t, idem.Executed, out)
						return err
					}))
					rec, err := once.Lookup(t.Context(), pool, key)
					require.NoError(t, err)
					require.Len(t, rec.PayloadHash, 32)
					require.Less(t, rec.Age.Minutes(), 5.0)
					require.GreaterOrEqual(t, rec.Age.Minutes(), 0.0)
				})
			}
		})
	}
}
