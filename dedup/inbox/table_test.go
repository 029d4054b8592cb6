package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// inStates stores a message of each state, of the id that is the state's name, and returns the states.
func inStates(t *testing.T, pool *pgxpool.Pool) []inbox.State {
	t.Helper()
	states := []inbox.State{inbox.Waiting, inbox.Handled, inbox.Dead, inbox.Discarded}
	for _, s := range states[1:] {
		store(t, pool, inbox.Message{
			Source: "s", Operation: "o", ID: s.String(), Body: []byte{},
			Headers: map[string]string{"a": "b"},
		})
	}
	_, err := inbox.Worker{}.Drain(t.Context(), pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
		if m.ID == "handled" {
			return nil
		}
		return inbox.ErrFinal
	})
	require.ErrorIs(t, err, inbox.ErrFinal)
	n, err := inbox.Table{}.Discard(t.Context(), pool, inbox.Filter{IDs: []string{"discarded"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	store(t, pool, msg("", "waiting"))
	for _, s := range states {
		require.Equal(t, s.String(), one(t, pool, s).ID)
	}
	return states
}

// A purge knows each state: what is handled or discarded goes, the body before the rest; what waits or is dead stays,
// however old it is.
func TestPurge(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	states := inStates(t, pool)
	require.Equal(t, len(states), count(t, pool, `SELECT count(DISTINCT state) FROM inbox`))
	table := inbox.Table{Keep: 48 * time.Hour, KeepBodies: 24 * time.Hour}
	older := func(hours int) {
		execSQL(t, pool, `UPDATE inbox SET received_at = received_at - $1::int * interval '1 hour',
			finished_at = finished_at - $1::int * interval '1 hour'`, hours)
	}
	purge := func() inbox.Purged {
		p, err := table.Purge(ctx, pool)
		require.NoError(t, err)
		return p
	}
	require.Zero(t, purge())
	older(25)
	require.Equal(t, inbox.Purged{Bodies: 2}, purge())
	require.Zero(t, purge())
	for _, s := range states {
		kept := s == inbox.Waiting || s == inbox.Dead
		require.Equal(t, kept, one(t, pool, s).Body != nil, s)
	}
	// What has no body cannot be replayed.
	for _, s := range []inbox.State{inbox.Handled, inbox.Discarded} {
		n, err := table.Replay(ctx, pool, inbox.Filter{State: s})
		require.NoError(t, err)
		require.Zero(t, n, s)
		again(t, pool, inbox.Message{Source: "s", Operation: "o", ID: s.String()})
	}
	older(24)
	require.Equal(t, inbox.Purged{Keys: 2}, purge())
	older(10_000)
	require.Zero(t, purge())
	require.Equal(t, "dead", one(t, pool, inbox.Dead).ID)
	require.Equal(t, "waiting", one(t, pool, inbox.Waiting).ID)

	// More than a batch, and some that somebody else has locked.
	execSQL(t, pool, `INSERT INTO inbox (source, operation, message_id, key, body, state, due_at, finished_at)
		SELECT 's', 'o', n::text, '', 'x', 2, NULL, now() - interval '3 days' FROM generate_series(1, 2500) AS n`)
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `SELECT FROM inbox WHERE message_id IN ('1', '2500') FOR UPDATE`)
	require.NoError(t, err)
	require.EqualValues(t, 2498, purge().Keys)
	require.NoError(t, tx.Rollback(ctx))
	require.EqualValues(t, 2, purge().Keys)
}

// A filter chooses by each of its fields; Replay takes what is finished or dead, once, with all its attempts.
func TestFilter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	var table inbox.Table
	for _, source := range []string{"s1", "s2"} {
		for _, operation := range []string{"o1", "o2"} {
			store(t, pool, inbox.Message{Source: source, Operation: operation, ID: source + operation})
		}
	}
	execSQL(t, pool, `UPDATE inbox SET received_at = received_at - interval '1 hour' WHERE message_id = 's1o1'`)
	_, err := inbox.Worker{MaxAttempts: 1}.Drain(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if m.ID == "s2o2" {
			_, err := tx.Exec(ctx, `SELECT 1/0`)
			return err
		}
		return errors.New("fails")
	})
	require.Error(t, err)
	halfAnHourAgo := time.Now().Add(-30 * time.Minute)
	for name, tc := range map[string]struct {
		filter inbox.Filter
		want   []string
	}{
		"everything dead":   {inbox.Filter{}, []string{"s1o1", "s1o2", "s2o1", "s2o2"}},
		"source":            {inbox.Filter{Source: "s1"}, []string{"s1o1", "s1o2"}},
		"operation":         {inbox.Filter{Operation: "o1"}, []string{"s1o1", "s2o1"}},
		"both":              {inbox.Filter{Source: "s2", Operation: "o1"}, []string{"s2o1"}},
		"ids":               {inbox.Filter{IDs: []string{"s2o2", "s1o1", "none", `"[{\`}}, []string{"s1o1", "s2o2"}},
		"no ids":            {inbox.Filter{IDs: []string{}}, nil},
		"error class":       {inbox.Filter{ErrorClass: "22012"}, []string{"s2o2"}},
		"before":            {inbox.Filter{ReceivedBefore: halfAnHourAgo}, []string{"s1o1"}},
		"after":             {inbox.Filter{ReceivedAfter: halfAnHourAgo}, []string{"s1o2", "s2o1", "s2o2"}},
		"nothing is so old": {inbox.Filter{ReceivedBefore: halfAnHourAgo.Add(-24 * time.Hour)}, nil},
		"another state":     {inbox.Filter{State: inbox.Handled}, nil},
	} {
		found, err := table.List(ctx, pool, tc.filter, 10)
		require.NoError(t, err, name)
		var ids []string
		for _, m := range found {
			ids = append(ids, m.ID)
		}
		require.Equal(t, tc.want, ids, name)
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		n, err := table.Replay(ctx, tx, tc.filter)
		require.NoError(t, err)
		require.EqualValues(t, len(tc.want), n, name)
		require.NoError(t, tx.Rollback(ctx))
	}
	limited, err := table.List(ctx, pool, inbox.Filter{}, 3)
	require.NoError(t, err)
	require.Len(t, limited, 3)

	n, err := table.Replay(ctx, pool, inbox.Filter{Source: "s1", Operation: "o1"})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	s := drain(t, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		require.Equal(t, 1, m.Attempt)
		return insert(ctx, tx, m)
	})
	require.Equal(t, inbox.Stats{Handled: 1}, s)
	n, err = table.Replay(ctx, pool, inbox.Filter{State: inbox.Handled})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	drain(t, pool, insert)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM effects`), "who replays what is handled wants it so")

	for _, f := range []inbox.Filter{{State: 9}, {Source: "\x00"}, {IDs: []string{"\xff"}}} {
		_, err = table.List(ctx, pool, f, 1)
		require.ErrorIs(t, err, inbox.ErrInvalid)
	}
	_, err = table.Replay(ctx, pool, inbox.Filter{State: inbox.Waiting})
	require.ErrorIs(t, err, inbox.ErrInvalid)
	for _, s := range []inbox.State{inbox.Waiting, inbox.Handled, inbox.Discarded} {
		_, err = table.Discard(ctx, pool, inbox.Filter{State: s})
		require.ErrorIs(t, err, inbox.ErrInvalid)
	}
}

var errNothing = errors.New("nothing of it")

// Each thing that Verify asks for is missed, and what it says fixes what SQL can fix.
func TestVerify(t *testing.T) {
	t.Parallel()
	for kind, tc := range map[string]struct {
		breaks []string // each by itself
		fixed  bool
	}{
		"table missing":  {[]string{`DROP TABLE inbox`}, true},
		"not our table":  {[]string{`DROP TABLE inbox; CREATE VIEW inbox AS SELECT 1`}, false},
		"not logged":     {[]string{`ALTER TABLE inbox SET UNLOGGED`}, true},
		"column missing": {[]string{`ALTER TABLE inbox DROP COLUMN last_error`}, false},
		"column type": {[]string{
			`ALTER TABLE inbox ALTER COLUMN key TYPE text COLLATE "default"`,
			`ALTER TABLE inbox ALTER COLUMN state DROP NOT NULL`,
		}, false},
		"constraint missing": {[]string{
			`ALTER TABLE inbox DROP CONSTRAINT inbox_pkey`,
			`ALTER TABLE inbox DROP CONSTRAINT inbox_pkey, ADD PRIMARY KEY (message_id, operation, source) DEFERRABLE`,
			`ALTER TABLE inbox DROP CONSTRAINT inbox_pkey, ADD PRIMARY KEY (message_id, operation, source, state)`,
			`ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; CREATE UNIQUE INDEX ON inbox (message_id, operation, source) WHERE state = 1`,
			`ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; CREATE UNIQUE INDEX ON inbox (lower(message_id), operation, source)`,
		}, false},
		"other unique index": {[]string{
			`CREATE UNIQUE INDEX ON inbox (message_id)`,
			`CREATE UNIQUE INDEX ON inbox (lower(source))`,
		}, false},
		"index missing": {[]string{
			`DROP INDEX inbox_due`, `DROP INDEX inbox_order`, `DROP INDEX inbox_running`, `DROP INDEX inbox_dead`,
			`DROP INDEX inbox_finished`, `DROP INDEX inbox_bodies`,
		}, true},
		"numbers out of order": {[]string{`ALTER TABLE inbox ALTER COLUMN seq SET CACHE 20`}, true},
		"trigger": {[]string{
			`CREATE FUNCTION nop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER nop BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION nop()`,
			`CREATE RULE nop AS ON UPDATE TO inbox DO INSTEAD NOTHING`,
		}, false},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, breaks := range tc.breaks {
				pool := migrated(t)
				require.NoError(t, inbox.Verify(t.Context(), pool))
				execSQL(t, pool, breaks, pgx.QueryExecModeSimpleProtocol)
				err := inbox.Verify(t.Context(), pool)
				require.ErrorContains(t, err, ": "+kind+": ", breaks)
				if kind != "table missing" {
					require.ErrorContains(t, inbox.Migrate(t.Context(), pool), kind, breaks)
				}
				if tc.fixed {
					for _, p := range problems(t, err) {
						execSQL(t, pool, p, pgx.QueryExecModeSimpleProtocol)
					}
					require.NoError(t, inbox.Verify(t.Context(), pool), breaks)
				}
			}
		})
	}
}

// Several processes that migrate at once make one table; one that Migrate did not make is left alone.
func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Pool(t)
	errs := make(chan error)
	for range 6 {
		go func() { errs <- inbox.Migrate(ctx, pool) }()
	}
	for range 6 {
		require.NoError(t, <-errs)
	}
	execSQL(t, pool, inbox.Table{}.DDL(), pgx.QueryExecModeSimpleProtocol) // it can be run again
	execSQL(t, pool, `CREATE TABLE other (id int)`)
	require.ErrorContains(t, inbox.Migrate(ctx, pool, inbox.Table{Name: "other"}), "not our table")
	require.Equal(t, 1, count(t, pool,
		`SELECT count(*) FROM pg_attribute WHERE attrelid = 'other'::regclass AND attnum > 0`))
	require.NoError(t, inbox.Migrate(ctx, pool, inbox.Table{Name: "a"}, inbox.Table{Name: "b"}))
	execSQL(t, pool, `CREATE SCHEMA app`)
	execSQL(t, pool, inbox.Table{Name: "app.by hand"}.DDL(), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, inbox.Verify(ctx, pool, inbox.Table{Name: "app.by hand"}))
}

// The rights that the package names are enough, and no part needs another one.
func TestRights(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	as := func(rights string, f func(db *pgxpool.Pool)) {
		role := pgx.Identifier{fmt.Sprintf("%s_%d", pool.Config().ConnConfig.Database, len(rights))}.Sanitize()
		execSQL(t, pool, `CREATE ROLE `+role)
		defer execSQL(t, pool, `DROP OWNED BY `+role+`; DROP ROLE `+role, pgx.QueryExecModeSimpleProtocol)
		execSQL(t, pool, `GRANT `+rights+` ON inbox TO `+role)
		execSQL(t, pool, `GRANT INSERT ON effects TO `+role)
		cfg := pool.Config().Copy()
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `SET ROLE `+role)
			return err
		}
		f(pgtest.PoolConfig(t, cfg))
	}
	as("SELECT, INSERT", func(db *pgxpool.Pool) {
		store(t, db, msg("k", "1"), msg("k", "2"), msg("", "bad"))
		again(t, db, msg("k", "1"))
		require.ErrorContains(t, inbox.Verify(ctx, db), "rights missing")
	})
	as("SELECT, UPDATE", func(db *pgxpool.Pool) {
		_, err := inbox.Worker{}.Drain(ctx, db, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if m.ID == "bad" {
				return inbox.ErrFinal
			}
			return insert(ctx, tx, m)
		})
		require.ErrorIs(t, err, inbox.ErrFinal)
		_, err = inbox.Table{}.Replay(ctx, db, inbox.Filter{})
		require.NoError(t, err)
		_, err = inbox.Worker{MaxAttempts: 1}.Drain(ctx, db,
			func(context.Context, pgx.Tx, inbox.Message) error { return errNothing })
		require.ErrorIs(t, err, errNothing)
		_, err = inbox.Table{}.Discard(ctx, db, inbox.Filter{})
		require.NoError(t, err)
		require.Zero(t, depth(t, db))
		_, err = inbox.Table{}.Purge(ctx, db)
		require.Error(t, err)
	})
	as("SELECT, UPDATE, DELETE", func(db *pgxpool.Pool) {
		p, err := inbox.Table{Keep: 1}.Purge(ctx, db)
		require.NoError(t, err)
		require.EqualValues(t, 3, p.Keys)
	})
	as("SELECT, INSERT, UPDATE, DELETE", func(db *pgxpool.Pool) { require.NoError(t, inbox.Verify(ctx, db)) })
}

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever stores
// and handles.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for _, path := range pgtest.ShadowPaths() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := pgtest.Shadowed(t, path)
			o := inbox.Table{Name: "app.messages"}
			for range 2 {
				require.NoError(t, inbox.Migrate(ctx, pool, o))
			}
			require.NoError(t, inbox.Verify(ctx, pool, o))
			for _, id := range []string{"bad", "behind", "behind"} {
				m := msg("k", id)
				m.Headers = map[string]string{"a": "b"}
				_, err := o.Store(ctx, pool, m)
				require.NoError(t, err)
			}
			_, err := o.Store(ctx, pool, msg("", "free"))
			require.NoError(t, err)
			bad := true
			w := quick()
			w.Table, w.MaxAttempts = o, 2
			h := func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
				if m.ID == "bad" && bad {
					return errNothing
				}
				return nil
			}
			_, err = w.Drain(ctx, pool, h)
			require.ErrorIs(t, err, errNothing)
			found, err := o.List(ctx, pool,
				inbox.Filter{IDs: []string{"bad"}, ReceivedAfter: time.Unix(0, 0), ReceivedBefore: time.Now().Add(time.Hour)}, 5)
			require.NoError(t, err)
			require.Len(t, found, 1)
			_, err = o.Replay(ctx, pool, inbox.Filter{})
			require.NoError(t, err)
			_, err = w.Drain(ctx, pool, h)
			require.ErrorIs(t, err, errNothing)
			_, err = o.Discard(ctx, pool, inbox.Filter{})
			require.NoError(t, err)
			bad = false
			_, err = w.Drain(ctx, pool, h)
			require.NoError(t, err)
			d, err := o.Depth(ctx, pool)
			require.NoError(t, err)
			require.Zero(t, d)
			require.NoError(t, inbox.Notify(ctx, pool))
			_, err = o.Purge(ctx, pool)
			require.NoError(t, err)
			conn := pg.FromPgx(pool)
			name, err := engine.ParseName(o.Name)
			require.NoError(t, err)
			for _, age := range []time.Duration{time.Hour, 1} {
				_, err = engine.For(name).Purge(ctx, conn, 1, age)
				require.NoError(t, err)
			}
			require.Greater(t, pgtest.Captured(t, pool), 10)
		})
	}
}
