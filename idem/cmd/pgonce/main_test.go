package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var errNever = errors.New("never")

var charge = idem.Scope{Source: "stripe", Operation: "charge"}

// shell runs command lines against one database.
type shell struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
}

func newShell(t *testing.T) *shell {
	t.Parallel()
	dsn := pgtest.DSN(t)
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	return &shell{t, dsn, pgtest.PoolConfig(t, cfg)}
}

// run runs a command line whose questions get the answer, and wants its exit status. No answer: there is no terminal.
func (s *shell) run(answer string, status int, args ...string) (out, errs string) {
	s.Helper()
	var stdout, stderr bytes.Buffer
	var in io.Reader
	if answer != "" {
		in = strings.NewReader(answer + "\n")
	}
	session := &session{
		ctx: s.Context(), in: in, out: &stdout, err: &stderr,
		open: func(ctx context.Context) (*pgxpool.Pool, error) {
			return pgxpool.New(ctx, s.dsn)
		},
	}
	require.Equal(s, status, run(session, args), "%v\n%s\n%s", args, &stdout, &stderr)
	return stdout.String(), stderr.String()
}

func (s *shell) int(sql string) (n int) {
	s.Helper()
	require.NoError(s, s.pool.QueryRow(s.Context(), sql).Scan(&n))
	return n
}

// A life of a table, as its operator sees it.
func TestOperate(t *testing.T) {
	s := newShell(t)
	ddl, _ := s.run("", 0, "ddl", "--table", "app.events", "--layout", "hash:4")
	require.Equal(t, dedup.Table{Name: "app.events", Layout: dedup.Hash(4)}.DDL(), ddl)

	out, _ := s.run("", statusFound, "verify")
	require.Contains(t, out, "missing")
	_, errs := s.run("no", statusUsage, "migrate")
	require.Contains(t, errs, "pgonce will make the table processed_events")
	require.Zero(t, s.int(`SELECT count(*) FROM pg_class WHERE relname = 'processed_events'`), "nothing was written")
	s.run("", statusUsage, "migrate") // no terminal, and no --yes
	s.run("yes", 0, "migrate")
	out, _ = s.run("", 0, "verify")
	require.Contains(t, out, "a valid unique constraint backs every key")

	s.run("", statusFound, "lookup", "stripe", "charge", "evt_1")
	_, err := idem.Run(t.Context(), s.pool, charge.Key("evt_1"), func(context.Context, pgx.Tx) error { return nil })
	require.NoError(t, err)
	out, _ = s.run("", 0, "lookup", "stripe", "charge", "evt_1", "--json")
	var found []record
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Equal(t, "done", found[0].State)

	_, errs = s.run("", 0, "forget", "stripe", "charge", "evt_1", "--reason", "wrong account", "--yes")
	require.Contains(t, errs, `"reason":"wrong account"`)
	require.Zero(t, s.int(`SELECT count(*) FROM processed_events`))
	s.run("", statusFound, "forget", "stripe", "charge", "evt_1", "--reason", "wrong account", "--yes")

	_, err = s.pool.Exec(t.Context(), `INSERT INTO processed_events (source, operation, key, processed_at)
		SELECT 's', 'o', 'k' || i, now() - interval '10 years' FROM generate_series(1, 1000) AS i`)
	require.NoError(t, err)
	out, _ = s.run("", 0, "purge", "--dry-run")
	require.Equal(t, "1000 keys would be deleted\n", out)
	s.run("no", statusUsage, "purge")
	require.Equal(t, 1000, s.int(`SELECT count(*) FROM processed_events`))
	_, errs = s.run("yes", 0, "purge")
	require.Contains(t, errs, "delete 1000 keys")
	require.Zero(t, s.int(`SELECT count(*) FROM processed_events`))
	s.run("", 0, "maintain", "--yes")
}

// Settling takes the key over first, and says no where there is nothing to settle.
func TestSettle(t *testing.T) {
	s := newShell(t)
	require.NoError(t, dedup.Migrate(t.Context(), s.pool))
	once := idem.Once{}
	abandoned := func(id string) {
		_, _, err := once.Reserve(t.Context(), s.pool, charge.Key(id), time.Millisecond)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			r, err := once.Lookup(t.Context(), s.pool, charge.Key(id))
			require.NoError(t, err)
			return r.State == idem.Unfinished
		}, 10*time.Second, time.Millisecond)
	}
	abandoned("evt_1")
	abandoned("evt_2")
	out, _ := s.run("", 0, "open")
	require.Equal(t, 2, strings.Count(out, "unfinished"), out)

	answer := filepath.Join(t.TempDir(), "answer.json")
	require.NoError(t, os.WriteFile(answer, []byte(`{"charge": "ch_1"}`), 0o600))
	settle := []string{"settle", "stripe", "charge"}
	s.run("", statusUsage, append(settle, "evt_1", "--confirm")...)                               // no reason
	s.run("", statusUsage, append(settle, "evt_1", "--confirm", "--void", "--reason", "seen")...) // both
	s.run("", statusUsage, append(settle, "evt_1", "--reason", "seen", "--yes")...)               // neither
	s.run("no", statusUsage, append(settle, "evt_1", "--confirm", "--reason", "seen")...)         // not confirmed
	s.run("", statusFound, append(settle, "evt_3", "--confirm", "--reason", "seen", "--yes")...)  // not there
	// an answer of nothing
	s.run("", statusUsage, append(settle, "evt_1", "--void", "--value", answer, "--reason", "seen")...)

	_, errs := s.run("yes", 0, append(settle, "evt_1", "--confirm", "--value", answer, "--reason", "seen")...)
	require.Contains(t, errs, `"reason":"seen"`)
	require.Contains(t, errs, `"attempt":2`)
	call := idem.Call[map[string]string]{
		Lease: time.Minute,
		Send: func(context.Context, string) (map[string]string, error) {
			return nil, errors.New("sent")
		},
	}
	v, outcome, err := call.Run(t.Context(), s.pool, charge.Key("evt_1"))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, outcome)
	require.Equal(t, "ch_1", v["charge"])
	s.run("", statusFound, append(settle, "evt_1", "--void", "--reason", "seen", "--yes")...) // settled

	s.run("", 0, append(settle, "evt_2", "--void", "--reason", "not there", "--yes")...)
	sent := errors.New("sent")
	call.Send = func(context.Context, string) (map[string]string, error) { return nil, sent }
	_, _, err = call.Run(t.Context(), s.pool, charge.Key("evt_2"))
	require.ErrorIs(t, err, sent, "the next delivery tries again")

	_, _, err = once.Reserve(t.Context(), s.pool, charge.Key("evt_4"), time.Minute)
	require.NoError(t, err)
	_, errs = s.run("", statusFound, append(settle, "evt_4", "--void", "--reason", "seen", "--yes")...)
	require.Contains(t, errs, "an attempt holds the key")
}

func TestBoxes(t *testing.T) {
	s := newShell(t)
	require.NoError(t, inbox.Migrate(t.Context(), s.pool))
	require.NoError(t, outbox.Migrate(t.Context(), s.pool))
	_, err := inbox.Store(t.Context(), s.pool,
		inbox.Message{Source: "s", Operation: "o", ID: "m\x1b[2J1", Body: []byte("secret")})
	require.NoError(t, err)
	_, err = inbox.Worker{MaxAttempts: 1}.Drain(t.Context(), s.pool, func(context.Context, pgx.Tx, inbox.Message) error {
		return errNever
	})
	require.ErrorIs(t, err, errNever)
	out, _ := s.run("", 0, "inbox", "depth")
	require.Contains(t, out, "dead 1")
	out, _ = s.run("", 0, "inbox", "list")
	require.NotContains(t, out, "secret")
	require.NotContains(t, out, "\x1b", "an id is no command to the terminal")
	require.Contains(t, out, `"m\x1b[2J1"`)
	s.run("no", statusUsage, "inbox", "replay")
	out, _ = s.run("", 0, "inbox", "replay", "--yes", "--json")
	require.JSONEq(t, `{"replayed": 1}`, out)
	out, _ = s.run("", 0, "inbox", "discard", "--yes")
	require.Equal(t, "0 discarded\n", out)

	require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("secret")})
	}))
	out, _ = s.run("", 0, "outbox", "lag")
	require.Contains(t, out, "waiting 1")
	out, _ = s.run("", 0, "outbox", "parked")
	require.NotContains(t, out, "secret")
	s.run("", 0, "outbox", "retry", outbox.NewID(), "--yes")
	s.run("no", statusUsage, "outbox", "discard", outbox.NewID())
}

// The command line is wrong: nothing is asked of a database.
func TestUsage(t *testing.T) {
	s := newShell(t)
	for _, args := range [][]string{
		{},
		{"no-such-command"},
		{"lookup"},
		{"lookup", "stripe", "charge", " "},
		{"verify", "--layout", "monthly"},
		{"verify", "--layout", "hash:0"},
		{"verify", "--table", "a.b.c"},
		{"ddl", "--layout", "hash:x"},
		{"forget", "stripe", "charge", "evt_1", "--reason", " ", "--yes"},
	} {
		_, errs := s.run("", statusUsage, args...)
		require.NotEmpty(t, errs)
	}
	out, _ := s.run("", 0, "--help")
	require.Contains(t, out, "DATABASE_URL")
	out, _ = s.run("", 0, "settle", "--help")
	require.Contains(t, out, "--reason")
}

// Where the database is, and who asks, is in no message.
func TestConnectionIsNotPrinted(t *testing.T) {
	for name, dsn := range map[string]string{
		"nobody there": "postgres://mallory:hunter2@127.0.0.1:1/payroll?connect_timeout=5",
		"unreadable":   "postgres://mallory:hunter2@127.0.0.1:99999/payroll",
		"not a URL":    "mallory hunter2 payroll",
	} {
		t.Run(name, func(t *testing.T) {
			s := &shell{T: t, dsn: dsn}
			out, errs := s.run("", statusDatabase, "verify")
			for _, secret := range []string{"mallory", "hunter2", "payroll", "127.0.0.1"} {
				require.NotContains(t, out+errs, secret)
			}
			require.Contains(t, errs, "DATABASE_URL")
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := newShell(t)
		cfg, err := pgx.ParseConfig(s.dsn)
		require.NoError(t, err)
		s.dsn = strings.Replace(s.dsn, "/"+cfg.Database, "/payroll", 1)
		out, errs := s.run("", statusDatabase, "verify")
		require.NotContains(t, out+errs, "payroll")
		require.Contains(t, errs, "3D000")
	})
}
