package idem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// errorRows produce every row of the table of errors in the package documentation, by its first column.
var errorRows = map[string]func(s *site) error{
	"Executed": func(s *site) error {
		out, err := idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing)
		require.Equal(s, idem.Executed, out)
		return err
	},
	"Duplicate": func(s *site) error {
		s.deliver(stripe.Key("1"), idem.Executed)
		out, err := idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing)
		require.Equal(s, idem.Duplicate, out)
		return err
	},
	"ErrInProgress": func(s *site) error {
		s.hold(stripe.Key("1"))
		return wantIs(s, idem.ErrInProgress)(idem.Once{MaxWait: time.Millisecond}.Run(s.ctx, s.sound, stripe.Key("1"),
			nothing))
	},
	"ErrNested": func(s *site) error {
		return wantIs(s, idem.ErrNested)(idem.Run(s.ctx, s.sound, stripe.Key("1"), func(ctx context.Context, _ pgx.Tx) error {
			_, err := idem.Run(ctx, s.sound, stripe.Key("1"), nothing)
			return err
		}))
	},
	"ErrUnfinished": func(s *site) error {
		s.sql(`INSERT INTO processed_events (source, operation, key, lease_until) VALUES ('stripe', 'activate', '1', now())`)
		return wantIs(s, idem.ErrUnfinished)(idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
	},
	"ErrLostLease": func(s *site) error {
		call := idem.Call[int]{Lease: time.Hour, Send: func(context.Context, string) (int, error) {
			s.expire(stripe.Key("1"))
			s.reserve(stripe.Key("1"))
			return 1, nil
		}}
		_, out, err := call.Run(s.ctx, s.sound, stripe.Key("1"))
		return wantIs(s, idem.ErrLostLease)(out, err)
	},
	"ErrUnknown": func(s *site) error {
		s.reserve(stripe.Key("1"))
		s.expire(stripe.Key("1"))
		call := idem.Call[int]{Lease: time.Hour, Send: func(context.Context, string) (int, error) {
			s.Error("called")
			return 1, nil
		}}
		_, out, err := call.Run(s.ctx, s.sound, stripe.Key("1"))
		return wantIs(s, idem.ErrUnknown)(out, err)
	},
	"ErrPayloadMismatch": func(s *site) error {
		s.deliver(stripe.Key("1").WithPayload([]byte("a")), idem.Executed)
		return wantIs(s, idem.ErrPayloadMismatch)(idem.Run(s.ctx, s.sound, stripe.Key("1").WithPayload([]byte("b")), nothing))
	},
	"ErrExpired": func(s *site) error {
		return wantIs(s, idem.ErrExpired)(idem.Run(s.ctx, s.sound, stripe.Key("1").OccurredAt(time.Unix(1, 0)), nothing))
	},
	"ErrFuture": func(s *site) error {
		once := s.weekly()
		return wantIs(s, idem.ErrFuture)(once.Run(s.ctx, s.sound, stripe.Key("1").OccurredAt(time.Now().Add(48*time.Hour)),
			nothing))
	},
	"no partition for it": func(s *site) error {
		once := s.weekly()
		s.sql(`DO $$ DECLARE leaf regclass; BEGIN
			FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'weekly'::regclass LOOP EXECUTE 'DROP TABLE ' || leaf; END LOOP;
		END $$`)
		_, err := once.Run(s.ctx, s.sound, stripe.Key("1").OccurredAt(time.Now()), nothing)
		require.ErrorContains(s, err, "Maintain")
		require.Empty(s, pgerr.Code(err))
		return err
	},
	"*FinalError": func(s *site) error {
		s.sql(`INSERT INTO processed_events (source, operation, key, failed) VALUES ('stripe', 'activate', '1', true)`)
		_, err := idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing)
		var final *idem.FinalError
		require.ErrorAs(s, err, &final)
		return err
	},
	"*KeyError": func(s *site) error {
		_, err := idem.Run(s.ctx, s.sound, stripe.Key(""), nothing)
		var bad *idem.KeyError
		require.ErrorAs(s, err, &bad)
		return err
	},
	"*Error, Unknown": func(s *site) error {
		script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropReply, Refuse: true}
		_, err := idem.Once{Tries: 1}.Run(s.ctx, s.broken(script, pgx.QueryExecModeExec), stripe.Key("1"), nothing)
		require.True(s, pgerr.CommitUnknown(err))
		return err
	},
	"40001, 40P01": func(s *site) error {
		return wantCode(s, "40001")(idem.Once{Tries: 1}.Run(s.ctx, s.sound, stripe.Key("1"), raises("40001")))
	},
	"lost connection, 57P0x": func(s *site) error {
		script := &faultconn.Script{When: faultconn.Containing("processed_events"), Mode: faultconn.DropBefore, Repeat: true}
		_, err := idem.Once{Tries: 1}.Run(s.ctx, s.broken(script, pgx.QueryExecModeExec), stripe.Key("1"), nothing)
		require.Empty(s, pgerr.Code(err))
		var own *idem.Error
		require.ErrorAs(s, err, &own)
		require.False(s, own.Unknown)
		return err
	},
	"55P03": func(s *site) error {
		s.hold(stripe.Key("1"))
		cfg := s.cfg.Copy()
		cfg.ConnConfig.RuntimeParams["lock_timeout"] = "1ms"
		return wantCode(s, "55P03")(idem.Run(s.ctx, s.open(cfg), stripe.Key("1"), nothing))
	},
	"57014": func(s *site) error {
		s.hold(stripe.Key("1"))
		cfg := s.cfg.Copy()
		cfg.ConnConfig.RuntimeParams["statement_timeout"] = "50ms"
		return wantCode(s, "57014")(idem.Run(s.ctx, s.open(cfg), stripe.Key("1"), nothing))
	},
	"57014, with MaxWait": func(s *site) error {
		s.slow("1.5")
		return wantCode(s, "57014")(idem.Once{MaxWait: time.Millisecond}.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
	},
	"25006": func(s *site) error {
		once := idem.Once{TxOptions: pgx.TxOptions{AccessMode: pgx.ReadOnly}}
		return wantCode(s, "25006")(once.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
	},
	"42P01, 42P10, 42501": func(s *site) error {
		s.sql(`ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
		_, err := idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing)
		require.ErrorContains(s, err, "dedup.Verify")
		require.True(s, pgerr.Is(err, "42P10"))
		s.sql(`DROP TABLE processed_events`)
		return wantCode(s, "42P01")(idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
	},
	"42703, 55000": func(s *site) error {
		s.sql(`ALTER TABLE processed_events DROP COLUMN token`)
		_ = wantCode(s, "42703")(idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
		s.sql(`ALTER TABLE processed_events ADD COLUMN token bigint, DROP CONSTRAINT processed_events_pkey`)
		s.sql(`ALTER TABLE processed_events ADD PRIMARY KEY (key, operation, source) DEFERRABLE`)
		return wantCode(s, "55000")(idem.Run(s.ctx, s.sound, stripe.Key("1"), nothing))
	},
	"Send's own error":    unanswered(time.Hour),
	"Send's, Remembers 0": unanswered(0),
	"the context's error": func(s *site) error {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		return wantIs(s, context.Canceled)(idem.Run(ctx, s.sound, stripe.Key("1"), nothing))
	},
	"fn's own error": func(s *site) error {
		own := errors.New("own")
		_, err := idem.Run(s.ctx, s.sound, stripe.Key("1"), func(context.Context, pgx.Tx) error { return own })
		require.Same(s, own, err)
		return err
	},
	"Apply's own error": func(s *site) error {
		own := errors.New("own")
		_, _, err := idem.Call[int]{
			Lease: time.Minute, Remembers: time.Hour, Send: func(context.Context, string) (int, error) { return 1, nil },
			Apply: func(context.Context, pgx.Tx, int) error { return own },
		}.Run(s.ctx, s.sound, stripe.Key("1"))
		require.Same(s, own, err)
		return err
	},
}

// unanswered is a Call whose Send returns an error without a mark.
func unanswered(remembers time.Duration) func(*site) error {
	return func(s *site) error {
		own := errors.New("no answer")
		_, out, err := idem.Call[int]{
			Lease: time.Minute, Remembers: remembers, Send: func(context.Context, string) (int, error) { return 0, own },
		}.Run(s.ctx, s.sound, stripe.Key("1"))
		return wantIs(s, own)(out, err)
	}
}

func wantIs(s *site, want error) func(idem.Outcome, error) error {
	return func(out idem.Outcome, err error) error {
		s.Helper()
		require.Zero(s, out)
		require.ErrorIs(s, err, want)
		return err
	}
}

func wantCode(s *site, code string) func(idem.Outcome, error) error {
	return func(out idem.Outcome, err error) error {
		s.Helper()
		require.Zero(s, out)
		require.Equal(s, code, pgerr.Code(err), "%v", err)
		return err
	}
}

func raises(code string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '`+code+`'; END $$`)
		return err
	}
}

// weekly makes a table of layout Weekly beside the other one.
func (s *site) weekly() idem.Once {
	s.Helper()
	t := dedup.Table{Name: "weekly", Layout: dedup.Weekly}
	require.NoError(s, dedup.Migrate(s.ctx, s.sound, t))
	return idem.Once{Table: t}
}

func (s *site) sql(text string) {
	s.Helper()
	_, err := s.sound.Exec(s.ctx, text)
	require.NoError(s, err)
}

// slow has every key take so many seconds.
func (s *site) slow(seconds string) {
	s.Helper()
	s.sql(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(` + seconds +
		`); RETURN NEW; END';
		CREATE TRIGGER slow BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION slow()`)
}

// hold claims the key in a transaction that stays open until the test's end.
func (s *site) hold(key idem.Key) {
	s.Helper()
	tx, err := s.sound.Begin(s.ctx)
	require.NoError(s, err)
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = idem.Do(s.ctx, tx, key, s.effect(key, new(atomic.Int32)))
	require.NoError(s, err)
}

// The table in the package documentation is the one that is tested: every row is produced, and its column "again?" is
// what Retryable says.
func TestErrorTable(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "outcome or error ")
	require.True(t, ok)
	columns := regexp.MustCompile(` {2,}`)
	seen := 0
	for line := range strings.Lines(table) {
		line = strings.TrimPrefix(strings.TrimRight(line, "\n"), "//\t")
		cells := columns.Split(line, -1)
		produce, ok := errorRows[cells[0]]
		if !ok {
			require.False(t, strings.HasPrefix(line, "package") && seen == 0)
			if len(cells) == 5 && cells[0] != "" && !strings.HasPrefix(cells[0], "//") && cells[1] != "cause" {
				t.Errorf("no test produces the row %q", cells[0])
			}
			continue
		}
		seen++
		require.Len(t, cells, 5, line)
		t.Run(cells[0], func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			err := produce(s)
			require.Equal(t, cells[3] == "later", idem.Retryable(err), "%v", err)
			if status, bad := strconv.Atoi(cells[4][:3]); bad == nil { // else it is for fn to say
				require.Equal(t, status, idem.HTTPStatus(err), "%v", err)
				require.Equal(t, strings.Contains(cells[4], "Retry-After"), idem.RetryAfter(err) > 0, "%v", err)
			}
			require.Equal(t, cells[2] == "yes" && cells[0] != "*FinalError", err == nil)
			require.NotContains(t, errText(err), "SECRET")
		})
	}
	require.Equal(t, len(errorRows), seen, "rows of the table that the documentation lacks")
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRetryable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("x"), false},
		{idem.ErrInProgress, true},
		{&idem.Error{Stage: "commit", Unknown: true, Err: errors.New("x")}, true},
		{&idem.Error{Stage: "claim", Err: &pgconn.PgError{Code: "23505"}}, true},
		{&idem.Error{Stage: "reserve", Err: &pgconn.PgError{Code: "23505"}}, true},
		{&idem.Error{Stage: "commit", Err: &pgconn.PgError{Code: "23505"}}, false},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "40001"}, true},
		{errors.Join(errors.New("x"), &pgconn.PgError{Code: "40P01"}), true},
		{idem.ErrExpired, false},
		{idem.ErrUnfinished, false},
		{idem.ErrLostLease, true},
		{idem.ErrUnknown, false},
		{&idem.Error{Stage: "send", Err: &idem.FinalError{Err: context.DeadlineExceeded}}, false},
		{&idem.Error{Stage: "send", Err: &idem.FinalError{Err: idem.ErrInProgress}}, false},
		{&idem.FinalError{Err: &pgconn.PgError{Code: "40001"}}, false},
		{context.Canceled, true},
		{fmt.Errorf("fn: %w", context.DeadlineExceeded), true},
		{&pgconn.PgError{Code: "57014"}, true},
		{pgx.ErrNoRows, false},
	} {
		require.Equal(t, c.want, idem.Retryable(c.err), "%v", c.err)
	}
}

// A consumer that shuts down closes its pool, and must not send what it was at to the dead letters.
func TestClosedPool(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	pool.Close()
	_, err := idem.Run(t.Context(), pool, stripe.Key("1"), nothing)
	require.Error(t, err)
	require.True(t, idem.Retryable(err), "%v", err)
	_, _, err = idem.Once{}.Reserve(t.Context(), pool, stripe.Key("1"), time.Minute)
	require.True(t, idem.Retryable(err), "%v", err)
}
