package idemtest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// memory is a fake, as one writes it for the tests of a service: keys in a map. claim says whether a key is new.
type memory struct {
	mu   sync.Mutex
	keys map[string]bool
	name func(idem.Key) string

	returnsConflict bool // as if INSERT ... ON CONFLICT DO NOTHING RETURNING returned the row that is there
	keepsOnError    bool
	keepsOnPanic    bool
	unlocked        bool // fn runs without the key being held
}

func (m *memory) run(ctx context.Context, key idem.Key, fn func(context.Context) error) (out idem.Outcome, err error) {
	if err := key.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	if m.unlocked {
		m.mu.Unlock()
	} else {
		defer m.mu.Unlock()
	}
	name := m.name(key)
	if m.unlocked {
		m.mu.Lock()
	}
	known := m.keys[name]
	if m.unlocked {
		m.mu.Unlock()
	}
	if known && !m.returnsConflict {
		return idem.Duplicate, nil
	}
	done := false
	defer func() {
		if done || m.keepsOnPanic {
			if m.unlocked {
				m.mu.Lock()
				defer m.mu.Unlock()
			}
			m.keys[name] = true
		}
	}()
	if err := fn(ctx); err != nil {
		done = m.keepsOnError
		return 0, err
	}
	done = true
	return idem.Executed, nil
}

func TestContractOfFakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		fake *memory
		want string
	}{
		{"sound", &memory{name: idem.Key.String}, ""},
		{
			"returns the conflicting row", &memory{name: idem.Key.String, returnsConflict: true},
			"a duplicate: the key was there already, and fn was called again",
		},
		{
			"forgets the source", &memory{name: func(k idem.Key) string { return k.Scope().Operation + "/" + k.ID() }},
			"different keys: ",
		},
		{
			"forgets the operation", &memory{name: func(k idem.Key) string { return k.Scope().Source + "/" + k.ID() }},
			"different keys: ",
		},
		{
			"cuts the id", &memory{name: func(k idem.Key) string { return k.String()[:min(len(k.String()), 255)] }},
			"different keys: ",
		},
		{"keeps the key on an error", &memory{name: idem.Key.String, keepsOnError: true}, "an error: after fn had failed"},
		{"keeps the key on a panic", &memory{name: idem.Key.String, keepsOnPanic: true}, "fn had "},
		{"does not hold the key", &memory{name: idem.Key.String, unlocked: true}, "calls at once: fn ran "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.fake.keys = map[string]bool{}
			message := failure(t, func(tb idemtest.TB) { idemtest.Contract(tb, c.fake.run) })
			if c.want == "" {
				require.Empty(t, message)
			} else {
				require.Contains(t, message, c.want)
			}
		})
	}
}

// onTable is a store on a table of its own, with the SQL that one would write for it.
func onTable(pool *pgxpool.Pool) idemtest.Runner {
	return func(ctx context.Context, key idem.Key, fn func(context.Context) error) (out idem.Outcome, err error) {
		if err := key.Validate(); err != nil {
			return 0, err
		}
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO keys (source, operation, key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
				key.Scope().Source, key.Scope().Operation, key.ID())
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				out = idem.Duplicate
				return nil
			}
			out = idem.Executed
			return fn(ctx)
		})
		if err != nil {
			return 0, err
		}
		return out, nil
	}
}

func TestContractOfTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, unique, want string }{
		{"sound", "UNIQUE (key, operation, source)", ""},
		{"without the source", "UNIQUE (key, operation)", "another key was taken for it"},
		{"without the operation", "UNIQUE (key, source)", "another key was taken for it"},
		{
			"with the time", "at timestamptz DEFAULT clock_timestamp(), UNIQUE (key, operation, source, at)",
			"fn was called again",
		},
		{"none", "CHECK (key <> '')", "fn was called again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			_, err := pool.Exec(t.Context(),
				`CREATE TABLE keys (source text NOT NULL, operation text NOT NULL, key text NOT NULL, `+c.unique+`)`)
			require.NoError(t, err)
			message := failure(t, func(tb idemtest.TB) { idemtest.Contract(tb, onTable(pool)) })
			if c.want == "" {
				require.Empty(t, message)
			} else {
				require.Contains(t, message, c.want)
			}
		})
	}
}

// What this module's own front door promises.
func TestContractOfRun(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	idemtest.Contract(t, func(ctx context.Context, key idem.Key, fn func(context.Context) error) (idem.Outcome, error) {
		return idem.Run(ctx, pool, key, func(ctx context.Context, _ pgx.Tx) error { return fn(ctx) })
	})
}
