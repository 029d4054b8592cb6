package idem_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// auditSchema keeps every move of every row, in the transaction that made it, and so in the order of the row's locks.
const auditSchema = `
CREATE TABLE audit (
  n bigint GENERATED ALWAYS AS IDENTITY, key text, at timestamptz DEFAULT clock_timestamp(),
  was jsonb, is_now jsonb);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit (key, was, is_now)
  VALUES (coalesce(new.key, old.key),
          CASE WHEN tg_op <> 'INSERT' THEN to_jsonb(old) END, CASE WHEN tg_op <> 'DELETE' THEN to_jsonb(new) END);
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON processed_events FOR EACH ROW EXECUTE FUNCTION audit()`

// auditMoves names each move by what the diagram in the package documentation calls it; one that it lacks is
// "illegal". It is written for itself, apart from the statements: what a row was, what it is, and the server's clock.
const auditMoves = `
SELECT key, attempt, move, count(*)
  FROM (
    SELECT key, coalesce(new_attempt, old_attempt) AS attempt,
           CASE
             WHEN was IS NULL AND open_now AND new_attempt = 1 AND new_lease > at - interval '1 minute' THEN 'reserve'
             WHEN was IS NULL THEN 'illegal: a row that was not reserved'
             WHEN NOT open_before AND is_now IS NOT NULL THEN 'illegal: settled twice'
             WHEN NOT open_before THEN 'illegal: a settled key deleted'
             WHEN is_now IS NULL THEN 'void'
             WHEN was - '{lease_until,attempt,failed,value,token}'::text[] <> is_now - '{lease_until,attempt,failed,value,token}'::text[]
               THEN 'illegal: another column changed'
             -- A confirmation and a take-over leave a token of their own; no other move touches it.
             WHEN (is_now->'token' <> was->'token')
                  <> CASE WHEN open_now THEN new_attempt > old_attempt AND new_lease > '-infinity' ELSE NOT (is_now->>'failed')::bool END
               THEN 'illegal: the token'
             WHEN NOT open_now AND new_attempt = old_attempt THEN CASE WHEN (is_now->>'failed')::bool THEN 'fail' ELSE 'confirm' END
             WHEN NOT open_now THEN 'illegal: settled by another attempt'
             WHEN is_now->'failed' <> was->'failed' OR is_now->'value' <> was->'value' THEN 'illegal: a value before the end'
             WHEN new_attempt = old_attempt AND new_lease < old_lease THEN 'expire'
             WHEN new_attempt = old_attempt THEN 'extend'
             WHEN new_attempt = old_attempt + 1 AND new_lease = '-infinity' THEN 'release'
             WHEN new_attempt = old_attempt + 1 AND old_lease <= at THEN 'take over'
             WHEN new_attempt = old_attempt + 1 THEN 'illegal: taken over while the lease lived'
             ELSE 'illegal: a jump'
           END AS move
      FROM (SELECT *, was->>'lease_until' IS NOT NULL AS open_before, is_now->>'lease_until' IS NOT NULL AS open_now,
                   (was->>'attempt')::int AS old_attempt, (is_now->>'attempt')::int AS new_attempt,
                   (was->>'lease_until')::timestamptz AS old_lease, (is_now->>'lease_until')::timestamptz AS new_lease
              FROM audit) AS a) AS m
 GROUP BY key, attempt, move
 ORDER BY key, attempt, move`

// moveOf is a move as a worker was told that it has made it, or as the audit has it.
type moveOf struct {
	key     string
	attempt int
	move    string
}

// Workers on few keys, all at once, with leases of milliseconds, that confirm, fail, extend, release, come late and
// forget what they held; and leases that end before their time. Every move of every row is a legal one, and each is
// one that exactly one worker was told of. (The seed gives the workers' intentions again; who comes first is up to
// the machine.)
func TestReservationWorkers(t *testing.T) {
	t.Parallel()
	steps, least := 300, 1
	if long {
		steps, least = 3000, 50
	}
	s := newSite(t)
	s.sql(auditSchema)
	r := seeded(t)
	var mu sync.Mutex
	told := map[moveOf]int{}
	var fenced, refused, crashed, conflicts atomic.Int64
	var generation [3]atomic.Int64
	zones := []string{
		"UTC", "Pacific/Kiritimati", "America/Anchorage", "Asia/Kolkata", "Africa/Cairo",
		"Pacific/Marquesas",
	}

	worker := func(pool *pgxpool.Pool, r *rand.Rand) error {
		var held []idem.Reservation
		tell := func(h idem.Reservation, move string, err error) error {
			switch {
			case err == nil:
				mu.Lock()
				told[moveOf{h.Key.ID(), h.Attempt, move}]++
				mu.Unlock()
				return nil
			case errors.Is(err, idem.ErrLostLease):
				fenced.Add(1)
				return nil
			case pgerr.Is(err, "40001"):
				conflicts.Add(1)
				return nil
			}
			return fmt.Errorf("%s: %w", move, err)
		}
		for range steps {
			n := r.IntN(len(generation))
			key := stripe.Key(fmt.Sprint(n), fmt.Sprint(generation[n].Load()))
			if len(held) == 0 || r.IntN(3) == 0 {
				res, out, err := idem.Once{}.Reserve(s.ctx, pool, key, time.Duration(1+r.IntN(15))*time.Millisecond)
				var final *idem.FinalError
				switch {
				case err == nil && out == idem.Executed:
					move := "take over"
					if res.Attempt == 1 {
						move = "reserve"
					}
					held = append(held, res)
					if err := tell(res, move, nil); err != nil {
						return err
					}
				case err == nil, errors.As(err, &final): // settled: on to the next
					generation[n].CompareAndSwap(generation[n].Load(), generation[n].Load()+1)
				case errors.Is(err, idem.ErrInProgress):
					refused.Add(1)
				default:
					return err
				}
				continue
			}
			h := held[r.IntN(len(held))]
			var err error
			switch r.IntN(9) {
			case 0, 1:
				level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[r.IntN(3)]
				err = tell(h, "confirm", pgx.BeginTxFunc(s.ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					if _, err := tx.Exec(s.ctx, `INSERT INTO effects (what) VALUES ($1)`, h.Key.ID()); err != nil {
						return err
					}
					return h.Confirm(s.ctx, tx, []byte("v"))
				}))
			case 2:
				err = tell(h, "fail", h.Fail(s.ctx, pool, nil))
			case 3:
				err = tell(h, "extend", h.Extend(s.ctx, pool, time.Duration(1+r.IntN(10))*time.Millisecond))
			case 4:
				move := "release"
				if h.Attempt == 1 {
					move = "void"
				} else {
					h.Attempt++ // which is what the row has then
				}
				err = tell(h, move, h.Release(s.ctx, pool))
			case 5:
				err = tell(h, "void", h.Void(s.ctx, pool))
			case 6:
				crashed.Add(1)
				held = nil
			case 7:
				_, err = pool.Exec(s.ctx, `
					UPDATE processed_events SET lease_until = clock_timestamp() - interval '1 microsecond'
					 WHERE key = $1 AND lease_until > clock_timestamp()`, key.ID())
			case 8: // it is busy with something, and the lease runs out, or not
				select {
				case <-time.After(time.Duration(r.IntN(10)) * time.Millisecond):
				case <-s.ctx.Done():
				}
			}
			if err != nil {
				return err
			}
			if len(held) > 4 {
				held = held[1:]
			}
		}
		return nil
	}

	var wg sync.WaitGroup
	for _, zone := range zones {
		cfg := s.cfg.Copy()
		cfg.MaxConns = 1
		cfg.ConnConfig.RuntimeParams["timezone"] = zone
		pool := s.open(cfg)
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		wg.Go(func() {
			if err := worker(pool, r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	rows, err := s.sound.Query(s.ctx, auditMoves)
	require.NoError(t, err)
	var m moveOf
	var n int
	total := map[string]int{}
	_, err = pgx.ForEachRow(rows, []any{&m.key, &m.attempt, &m.move, &n}, func() error {
		total[m.move] += n
		switch {
		case m.move == "expire":
		case m.attempt == 1 && (m.move == "reserve" || m.move == "extend"):
			// Reserve renews the lease of a first attempt where waiting has used up half of it. When it comes too late for
			// that, it has reserved, and tells nobody.
			require.LessOrEqual(t, told[m], n, "%v: what workers were told, and what the row went through", m)
			delete(told, m)
		default:
			require.Equal(t, told[m], n, "%v: what the row went through, and what workers were told", m)
			delete(told, m)
		}
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, told, "moves that workers were told of, and no row went through")
	var effects int
	require.NoError(t, s.sound.QueryRow(s.ctx, `SELECT count(*) FROM effects`).Scan(&effects))
	require.Equal(t, total["confirm"], effects)
	t.Logf("%d workers, %d steps each: %v; refused %d, fenced %d, 40001 %d, crashed %d", len(zones), steps, total,
		refused.Load(), fenced.Load(), conflicts.Load(), crashed.Load())
	for _, move := range []string{"reserve", "take over", "confirm", "fail", "extend", "release", "void", "expire"} {
		require.GreaterOrEqual(t, total[move], least, "%s: or this proves nothing", move)
	}
	for name, n := range map[string]int64{"refused": refused.Load(), "fenced": fenced.Load(), "crashed": crashed.Load()} {
		require.GreaterOrEqual(t, n, int64(least), "%s: or this proves nothing", name)
	}
}
