package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// A claim that meets the deletion of its own old key waits for it, and has one answer: the first of its key where the
// purge commits, a duplicate where it does not. At every isolation level, by every door.
func TestClaimMeetsPurge(t *testing.T) {
	t.Parallel()
	doors := map[string]func(s *site, level pgx.TxIsoLevel, key idem.Key) (idem.Outcome, error){
		"Do": func(s *site, level pgx.TxIsoLevel, key idem.Key) (out idem.Outcome, err error) {
			err = pgx.BeginTxFunc(s.ctx, s.sound, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				// the snapshot is older than the end of the purge
				if _, err := tx.Exec(s.ctx, `SELECT 1 FROM effects`); err != nil {
					return err
				}
				out, err = idem.Do(s.ctx, tx, key, nothing)
				return err
			})
			return out, err
		},
		"Run": func(s *site, level pgx.TxIsoLevel, key idem.Key) (idem.Outcome, error) {
			return idem.Once{TxOptions: pgx.TxOptions{IsoLevel: level}, Tries: 1}.Run(s.ctx, s.sound, key, nothing)
		},
		"Reserve": func(s *site, _ pgx.TxIsoLevel, key idem.Key) (idem.Outcome, error) {
			_, out, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Minute)
			return out, err
		},
		"MaxWait": func(s *site, _ pgx.TxIsoLevel, key idem.Key) (idem.Outcome, error) {
			return idem.Once{MaxWait: time.Minute}.Run(s.ctx, s.sound, key, nothing)
		},
	}
	for name, door := range doors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
				for mode, want := range map[faultconn.Mode]idem.Outcome{
					faultconn.Pass:       idem.Executed,
					faultconn.DropBefore: idem.Duplicate,
				} {
					t.Run(fmt.Sprintf("%s/%v", level, want), func(t *testing.T) {
						s.sql(`DELETE FROM processed_events`)
						key := stripe.Key("old")
						_, err := idem.Run(s.ctx, s.sound, key, nothing)
						require.NoError(t, err)
						s.sql(`UPDATE processed_events SET processed_at = now() - interval '40 days'`)
						type answer struct {
							out idem.Outcome
							err error
						}
						answers := make(chan answer, 1)
						// The COMMIT is the first of the purge: its other transactions, which only look, are rolled back.
						script := &faultconn.Script{When: faultconn.Commit, Mode: mode, Do: func(faultconn.Message) {
							go func() {
								out, err := door(s, level, key)
								answers <- answer{out, err}
							}()
							s.untilWaiting()
						}}
						broken := s.broken(script, pgx.QueryExecModeCacheStatement)
						stats, err := dedup.Table{}.Purge(s.ctx, broken)
						broken.Close()
						require.Equal(t, 1, script.Hits(), "%v", script)
						got := <-answers
						require.NoError(t, got.err)
						require.Equal(t, want, got.out)
						if mode == faultconn.Pass {
							require.NoError(t, err)
							require.EqualValues(t, 1, stats.Deleted)
						} else {
							require.Error(t, err)
							require.Zero(t, stats.Deleted)
						}
						require.Equal(t, 1, rows(t, s.sound, "processed_events"))
					})
				}
			}
		})
	}
}

// untilWaiting waits until a statement of the site's waits for a lock.
func (s *site) untilWaiting() {
	for s.ctx.Err() == nil {
		var n int
		err := s.sound.QueryRow(s.ctx, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		if err != nil || n > 0 {
			return
		}
		time.Sleep(time.Millisecond) // between two looks, until the context ends
	}
}

// purgeSchema keeps what every DELETE has deleted, as it was at that moment, and what every effect was.
const purgeSchema = `
CREATE TABLE deleted (key text, lease_until timestamptz, processed_at timestamptz, by text, at timestamptz);
CREATE FUNCTION log_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO deleted VALUES (old.key, old.lease_until, old.processed_at, current_setting('application_name'), clock_timestamp());
  RETURN NULL;
END $$;
CREATE TRIGGER log_delete AFTER DELETE ON processed_events FOR EACH ROW EXECUTE FUNCTION log_delete();
CREATE TABLE ran (key text, claimed timestamptz, at timestamptz DEFAULT clock_timestamp())`

// Workers claim, reserve, take over, settle, forget and abandon few keys of a table that keeps them for moments only,
// while purges of every kind run over it. No purge deletes what is not done, or is inside of its window; no effect
// comes again inside of the window; and every call has a clear answer. (The seed gives the workers' intentions again;
// who comes first is up to the machine.)
func TestPurgeRaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sql(purgeSchema)
	r := seeded(t)
	length, least := 3*time.Second, 3
	if long {
		length, least = time.Minute, 1_000
	}
	const window = 200 * time.Millisecond
	once := idem.Once{Table: dedup.Table{Retention: window}}
	ctx, cancel := context.WithTimeout(s.ctx, length+10*time.Second)
	defer cancel()
	all := []string{
		"executed", "duplicate", "reserved", "taken over", "confirmed", "forgotten", "in progress", "unfinished",
		"purge by SQL", "purge that deleted", "purge that was refused", "purge that was ended",
	}
	begun := time.Now()
	var mu sync.Mutex
	told := map[string]int{}
	tell := func(what string) { // and end when there was enough of everything
		mu.Lock()
		defer mu.Unlock()
		told[what]++
		if time.Since(begun) >= length && !slices.ContainsFunc(all, func(what string) bool { return told[what] < least }) {
			cancel()
		}
	}

	// No worker knows these keys, so that every purge meets them for as long as it lasts.
	const left = 10
	for i := range left {
		_, out, err := once.Reserve(s.ctx, s.sound, stripe.Key(fmt.Sprintf("left %d", i)), time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	}

	ran := func(ctx context.Context, tx pgx.Tx, key idem.Key) error {
		// The youngest: an old snapshot also shows the row that was purged, beside the transaction's own.
		_, err := tx.Exec(ctx, `INSERT INTO ran (key, claimed) SELECT $1, max(processed_at) FROM processed_events WHERE key = $1`, key.ID())
		return err
	}
	var wg sync.WaitGroup
	for range 6 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		wg.Go(func() {
			var held []idem.Reservation
			for ctx.Err() == nil {
				what, err := s.purgeStep(once, r, &held, ran)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				tell(what)
			}
		})
	}
	app := s.cfg.Copy()
	app.ConnConfig.RuntimeParams["application_name"] = "purge"
	purging := s.open(app)
	for i := range 3 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		wg.Go(func() {
			for ctx.Err() == nil {
				var err error
				what := "purge"
				if i == 0 {
					_, err = purging.Exec(s.ctx, once.Table.PurgeSQL())
					what = "purge by SQL"
				} else {
					// Some are ended in the middle, and the next goes on.
					longest := time.Minute
					if r.IntN(3) == 0 {
						longest = time.Duration(1+r.IntN(20)) * time.Millisecond
					}
					short, end := context.WithTimeout(s.ctx, longest)
					var stats dedup.Stats
					stats, err = dedup.Cleaner{Table: once.Table, Batch: 1 + r.IntN(20), Rest: r.IntN(3) - 1}.Purge(short, purging)
					end()
					switch {
					case errors.Is(err, dedup.ErrBusy):
						what, err = "purge that was refused", nil
					case errors.Is(err, context.DeadlineExceeded):
						what, err = "purge that was ended", nil
					case stats.Deleted > 0:
						what = "purge that deleted"
					}
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				tell(what)
				sleepUntil(ctx, time.Now().Add(time.Duration(r.IntN(10))*time.Millisecond))
			}
		})
	}
	wg.Wait()

	count := func(sql string, args ...any) (n int) {
		require.NoError(t, s.sound.QueryRow(s.ctx, sql, args...).Scan(&n))
		return n
	}
	t.Logf("%v; deleted by purges %d", told, count(`SELECT count(*) FROM deleted WHERE by = 'purge'`))
	require.Zero(t, count(`SELECT count(*) FROM deleted WHERE by = 'purge' AND lease_until IS NOT NULL`),
		"what is not done")
	require.Equal(t, left, count(`SELECT count(*) FROM processed_events WHERE key LIKE 'left %'`),
		"what nobody has settled")
	require.Zero(t, count(`SELECT count(*) FROM deleted WHERE by = 'purge' AND processed_at > at - $1::int8 * interval '1 microsecond'`, window.Microseconds()), "what is inside of the window")
	// An effect comes again only after its window, unless somebody has let the key go.
	again := `SELECT count(*) FROM (SELECT key, at, lag(claimed) OVER (PARTITION BY key ORDER BY at) AS before FROM ran) AS r
		WHERE at - before < $1::int8 * interval '1 microsecond'
		  AND NOT EXISTS (SELECT 1 FROM deleted AS d WHERE d.key = r.key AND d.by <> 'purge' AND d.at BETWEEN r.before AND r.at)`
	require.Zero(t, count(again, window.Microseconds()), "an effect that came again")
	require.Equal(t, told["executed"]+told["confirmed"], count(`SELECT count(*) FROM ran`))
	for _, what := range all {
		require.GreaterOrEqual(t, told[what], least, "%s: or this proves nothing", what)
	}
}

// purgeStep does one thing to one key, and says which answer it had; any that is not one of the documented is an error.
func (s *site) purgeStep(
	once idem.Once, r *rand.Rand, held *[]idem.Reservation, ran func(context.Context, pgx.Tx, idem.Key) error,
) (what string, err error) {
	key := stripe.Key(fmt.Sprint(r.IntN(30)))
	fn := func(ctx context.Context, tx pgx.Tx) error { return ran(ctx, tx, key) }
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	var out idem.Outcome
	action := r.IntN(12)
	switch {
	case action < 5:
		once.TxOptions.IsoLevel = levels[r.IntN(len(levels))]
		what = "Run"
		out, err = once.Run(s.ctx, s.sound, key, fn)
	case action < 7:
		what = "Do"
		err = pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
			out, err = once.Do(s.ctx, tx, key, fn)
			return err
		})
	case action < 9:
		what = "Reserve"
		var res idem.Reservation
		res, out, err = once.Reserve(s.ctx, s.sound, key, time.Duration(1+r.IntN(30))*time.Millisecond)
		if err == nil && out == idem.Executed {
			*held = append(*held, res)
			if res.Attempt > 1 {
				return "taken over", nil
			}
			return "reserved", nil
		}
	case action == 9:
		what = "Forget"
		err = pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error { return once.Forget(s.ctx, tx, key) })
		if err == nil {
			return "forgotten", nil
		}
	case len(*held) == 0:
		return "nothing", nil
	default:
		what = "Confirm"
		h := (*held)[0]
		*held = (*held)[1:]
		if r.IntN(3) == 0 {
			return "abandoned", nil
		}
		err = pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
			if err := h.Confirm(s.ctx, tx, nil); err != nil {
				return err
			}
			return ran(s.ctx, tx, h.Key)
		})
		if err == nil {
			return "confirmed", nil
		}
	}
	for sentinel, name := range map[error]string{
		idem.ErrInProgress: "in progress", idem.ErrUnfinished: "unfinished", idem.ErrNotFound: "not found",
		idem.ErrLostLease: "lost lease",
	} {
		if errors.Is(err, sentinel) {
			return name, nil
		}
	}
	if err == nil {
		return out.String(), nil
	}
	return what, err
}
