package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
)

// What a handler that fails wrote is not kept, whatever way it fails; its attempt is counted, with the class of the
// error. The other message is handled.
func TestFailing(t *testing.T) {
	t.Parallel()
	type want struct {
		state inbox.State
		class string
		is    error
	}
	for name, tc := range map[string]struct {
		fails func(ctx context.Context, tx pgx.Tx) error
		want  want
		kept  int // what it has committed by itself
	}{
		"error": {
			func(context.Context, pgx.Tx) error { return errors.New("secret\x00\xff") },
			want{inbox.Waiting, "error", nil},
			0,
		},
		"final": {func(context.Context, pgx.Tx) error {
			return fmt.Errorf("no such order: %w", inbox.ErrFinal)
		}, want{inbox.Dead, "error", inbox.ErrFinal}, 0},
		"panic": {func(context.Context, pgx.Tx) error { panic("secret") }, want{inbox.Waiting, "panic", inbox.ErrPanic}, 0},
		"exit":  {func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil }, want{inbox.Waiting, "error", nil}, 0},
		"SQL error": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT 1/0`)
			return err
		}, want{inbox.Waiting, "22012", nil}, 0},
		"swallowed SQL error": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 0},
		"rows left open": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
			return err
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 0},
		"Commit": {
			func(ctx context.Context, tx pgx.Tx) error { return ignore(tx.Commit(ctx)) },
			want{inbox.Dead, "misuse", inbox.ErrMisuse},
			0,
		},
		"Rollback": {
			func(ctx context.Context, tx pgx.Tx) error { return ignore(tx.Rollback(ctx)) },
			want{inbox.Dead, "misuse", inbox.ErrMisuse},
			0,
		},
		"COMMIT": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `COMMIT`)
			return err
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 1},
		"COMMIT, and an error": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `COMMIT`)
			return errors.New("fails")
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 1},
		"ROLLBACK": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `ROLLBACK`)
			return err
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 0},
		"killed": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}, want{inbox.Waiting, "57P01", nil}, 0},
		"connection closed": {
			func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
			want{inbox.Waiting, "error", nil},
			0,
		},
		"hangs": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(600)`)
			return err
		}, want{inbox.Waiting, "timeout", context.DeadlineExceeded}, 0},
		"changes its row": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE inbox SET token = 7 WHERE message_id = 'bad'`)
			return err
		}, want{inbox.Dead, "misuse", inbox.ErrMisuse}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			store(t, pool, msg("", "bad"), msg("", "good"))
			var heard error
			w := inbox.Worker{
				Timeout: time.Minute, MinRetry: time.Hour,
				Done: func(_ context.Context, m inbox.Message, err error) {
					if m.ID == "bad" {
						heard = err
					}
				},
			}
			if name == "hangs" {
				w.Timeout = 50 * time.Millisecond
			}
			s, err := w.Drain(t.Context(), pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if err := insert(ctx, tx, m); err != nil || m.ID == "good" {
					return err
				}
				return tc.fails(ctx, tx)
			})
			require.Error(t, err)
			require.Equal(t, err, heard)
			if tc.want.is != nil {
				require.ErrorIs(t, err, tc.want.is)
			}
			dead := map[bool]int64{true: 1}[tc.want.state == inbox.Dead]
			require.Equal(t, inbox.Stats{Handled: 1, Failed: 1, Dead: dead}, s)
			require.Equal(t, tc.kept, count(t, pool, `SELECT count(*) FROM effects WHERE id = 'bad'`))
			require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM effects WHERE id = 'good'`))
			m := one(t, pool, tc.want.state)
			require.Equal(t, "bad", m.ID)
			require.Equal(t, tc.want.class, m.ErrorClass, "%s", m.LastError)
			require.Equal(t, 1, m.Attempt)
			require.NotEmpty(t, m.LastError)
			if tc.want.state == inbox.Waiting {
				require.Equal(t, 1, count(t, pool, `
					SELECT count(*) FROM inbox WHERE due_at > now() + interval '40 minutes' AND due_at < now() + interval '80 minutes'`))
			}
		})
	}
}

func ignore(error) error { return nil }

// The server's words about rows are kept nowhere.
func TestNoContent(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	execSQL(t, pool, `ALTER TABLE effects ADD UNIQUE (id)`)
	store(t, pool, msg("", "a"))
	_, err := inbox.Worker{MinRetry: time.Hour}.Drain(t.Context(), pool,
		func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ('secret'), ('secret')`)
			return err
		})
	require.Error(t, err)
	m := one(t, pool, inbox.Waiting)
	require.Equal(t, "23505", m.ErrorClass)
	require.NotContains(t, m.LastError, "secret")
}

// The time between two attempts doubles up to MaxRetry, with a fifth more or less; after MaxAttempts the message is
// dead.
func TestBackoff(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	w := inbox.Worker{MinRetry: time.Minute, MaxRetry: 4 * time.Minute, MaxAttempts: 5}
	different := map[float64]bool{}
	for attempt, want := range []float64{60, 120, 240, 240, 0} {
		s, err := w.Drain(t.Context(), pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
			require.Equal(t, attempt+1, m.Attempt)
			return errors.New("fails")
		})
		require.ErrorContains(t, err, "fails")
		require.EqualValues(t, 1, s.Failed)
		if want == 0 {
			require.EqualValues(t, 1, s.Dead)
			break
		}
		var seconds float64
		require.NoError(t, pool.QueryRow(t.Context(),
			`SELECT extract(epoch FROM due_at - now())::float8 FROM inbox`).Scan(&seconds))
		require.InDelta(t, want, seconds, want*0.2+5)
		different[seconds/want] = true
		execSQL(t, pool, `UPDATE inbox SET due_at = now()`)
	}
	require.Len(t, different, 4)
	require.Equal(t, 5, one(t, pool, inbox.Dead).Attempt)
}

const poisonEnv = "PGONCE_POISONED"

// poisoned is the process.
func poisoned(dsn string) int {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return 2
	}
	_, err = inbox.Worker{MaxAttempts: 3, Lease: 200 * time.Millisecond}.Drain(ctx, pool,
		func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if err := insert(ctx, tx, m); err != nil {
				return err
			}
			if m.ID == "poison" {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		})
	if err != nil && !strings.Contains(err.Error(), "handle") {
		return 3
	}
	return 0
}

// A message that kills its process reaches the dead letters, with nothing of what it wrote; those behind it are
// handled, each once.
func TestPoison(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "before"), msg("", "poison"), msg("", "behind"))
	self, err := os.Executable()
	require.NoError(t, err)
	killed := 0
	require.Eventually(t, func() bool {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), poisonEnv+"="+pool.Config().ConnString())
		_ = cmd.Run()
		if !cmd.ProcessState.Exited() {
			killed++
		} else {
			require.Zero(t, cmd.ProcessState.ExitCode())
		}
		return count(t, pool, `SELECT count(*) FROM inbox WHERE state = 3`) == 1
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, 3, killed)
	m := one(t, pool, inbox.Dead)
	require.Equal(t, "crash", m.ErrorClass)
	require.Equal(t, 3, m.Attempt)
	drain(t, pool, insert)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM effects`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM effects WHERE id = 'poison'`))
}

// Run handles as many messages at a time as it has workers, and no more.
func TestWorkers(t *testing.T) {
	t.Parallel()
	limit, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ctx, stop := context.WithCancel(limit)
	pool := migrated(t)
	for n := range 12 {
		store(t, pool, msg("", fmt.Sprint(n)))
	}
	var mu sync.Mutex
	var now, most, done int
	full := make(chan struct{}) // closed when each worker has a message
	w := inbox.Worker{Workers: 3, Poll: time.Millisecond}
	err := w.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		mu.Lock()
		if now++; now > most {
			if most = now; most == 3 {
				close(full)
			}
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			now--
		}()
		select {
		case <-full:
		case <-ctx.Done():
		}
		time.Sleep(5 * time.Millisecond) // the work, beside which a fourth one would be seen
		mu.Lock()
		defer mu.Unlock()
		if done++; done == 12 {
			stop() // what is finished is committed all the same
		}
		return insert(context.WithoutCancel(ctx), tx, m)
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 3, most)
	require.Equal(t, 12, count(t, pool, `SELECT count(DISTINCT id) FROM effects`))
	require.Equal(t, 12, count(t, pool, `SELECT count(*) FROM inbox WHERE state = 2`))
}

// A handler that takes longer than the lease keeps its message: its row is locked.
func TestLongerThanTheLease(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	w := quick()
	w.Lease = time.Millisecond
	slow := make(chan inbox.Stats)
	go func() {
		s, _ := w.Drain(t.Context(), pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			close(begun)
			<-goOn
			return insert(ctx, tx, m)
		})
		slow <- s
	}()
	<-begun
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM inbox WHERE due_at < clock_timestamp()`) == 1
	}, 10*time.Second, time.Millisecond)
	for range 10 {
		s, err := w.Drain(t.Context(), pool, insert)
		require.NoError(t, err)
		require.Zero(t, s)
	}
	close(goOn)
	require.Equal(t, inbox.Stats{Handled: 1}, <-slow)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM effects`))
}

// One that was claimed, and then taken by another one, because its worker stalled between the two steps, is handled
// once; and one whose claim is still held by a session that the worker has lost is left.
func TestStaleClaim(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	execSQL(t, pool, `UPDATE inbox SET token = 1, attempt = 1, due_at = now() - interval '1 second'`)
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `SELECT FROM inbox FOR UPDATE`)
	require.NoError(t, err)
	require.Zero(t, drain(t, pool, insert), "a session that is lost to its client has it")
	require.NoError(t, tx.Rollback(ctx))
	require.Zero(t, drain(t, pool, insert), "its worker may be about to write down what failed")
	require.Equal(t, 1, count(t, pool,
		`SELECT attempt FROM inbox WHERE due_at > now() AND due_at <= now() + interval '5 seconds'`))
	execSQL(t, pool, `UPDATE inbox SET due_at = now()`)
	s := drain(t, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		require.Equal(t, 2, m.Attempt)
		return insert(ctx, tx, m)
	})
	require.Equal(t, inbox.Stats{Handled: 1}, s)
}

// When ctx ends, what has failed by it is not counted, and is free at once.
func TestCancel(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	ctx, stop := context.WithCancel(t.Context())
	err := inbox.Worker{MaxAttempts: 1}.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		stop()
		return insert(ctx, tx, m)
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, one(t, pool, inbox.Waiting).Attempt)
	require.Equal(t, inbox.Stats{Handled: 1}, drain(t, pool, insert))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM effects`))
}

// A row that is bad, for us or for the server, does not stall the others, and is dead in the end.
func TestBadRow(t *testing.T) {
	t.Parallel()
	for says, breaks := range map[string]string{
		"headers": `UPDATE inbox SET headers = '{"a": 1}' WHERE message_id = 'bad'`,
		// As of a body that is too large for a mode of the driver.
		"22012": `ALTER TABLE inbox RENAME TO stored;
			CREATE VIEW inbox AS SELECT source, operation, message_id, seq, key, headers,
			  CASE WHEN message_id = 'bad' THEN (1 / attempt / 0)::text::bytea ELSE body END AS body,
			  received_at, state, due_at, attempt, token, error_class, last_error, finished_at FROM stored`,
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			badRow(t, says, breaks)
		})
	}
}

func badRow(t *testing.T, says, breaks string) {
	pool := migrated(t)
	store(t, pool, msg("", "bad"))
	for n := range 5 {
		store(t, pool, msg("", fmt.Sprint(n)))
	}
	execSQL(t, pool, breaks, pgx.QueryExecModeSimpleProtocol)
	w := inbox.Worker{MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
	var mu sync.Mutex
	handled := map[string]int{}
	s, err := w.Drain(t.Context(), pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled[m.ID]++
		return nil
	})
	require.ErrorContains(t, err, says)
	require.Equal(t, inbox.Stats{Handled: 5, Failed: 2, Dead: 1}, s)
	require.Len(t, handled, 5)
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, w := range []inbox.Worker{
		{Workers: -1},
		{MaxAttempts: -1},
		{Timeout: -1},
		{Lease: -1},
		{Lease: 2 * time.Hour},
		{Poll: -1},
		{MinRetry: 2, MaxRetry: 1},
		{Table: inbox.Table{Name: "a.b.c"}},
		{Table: inbox.Table{Name: strings.Repeat("x", 55)}},
		{Table: inbox.Table{Keep: -1}},
		{Table: inbox.Table{KeepBodies: 50 * 24 * time.Hour}},
	} {
		require.Error(t, w.Validate(), "%+v", w)
		require.Error(t, w.Run(t.Context(), nil, insert))
		_, err := w.Drain(t.Context(), nil, insert)
		require.Error(t, err)
	}
	_, err := inbox.Worker{}.Drain(t.Context(), nil, nil)
	require.ErrorContains(t, err, "no handler")
	require.NoError(t, inbox.Worker{MaxRetry: math.MaxInt64}.Validate())
	require.NoError(t, inbox.Table{Name: strings.Repeat("x", 54), Keep: time.Hour}.Validate())
	require.Panics(t, func() { _ = inbox.Table{Name: "a.b.c"}.DDL() })
}
