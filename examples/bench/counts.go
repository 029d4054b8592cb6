package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// count is what became of the messages that a rival handled.
type count struct {
	rival, says, isolation string

	messages, deliveries, crashes int

	lost    int // messages without an effect, though a delivery was acknowledged
	doubled int // messages with more than one
	wrong   int // answers that acknowledged, while no effect was committed
	failed  int // deliveries that ended with an error, and came again
	wal     int64
}

const (
	copies    = 4 // deliveries of each message
	dropIndex = `DROP INDEX IF EXISTS bench_effects_id`

	crashEvery = 5                    // one message in so many
	work       = time.Millisecond / 2 // that the handler does between the claim and its effect
)

// counts has each rival handle messages that come four times each, from eight workers at once. At one message in
// five the process that first comes to the effect dies: its connection is cut and nothing of it runs on. What
// got no answer comes again.
func (b *bench) counts(ctx context.Context, p *page) error {
	for _, isolation := range []string{"read committed", "repeatable read"} {
		pool, err := b.pool(ctx, workers, func(c *pgx.ConnConfig) {
			c.RuntimeParams["default_transaction_isolation"] = isolation
		})
		if err != nil {
			return err
		}
		for _, r := range rivals() {
			b.say("counts of %s, %s", r.name, isolation)
			c, err := b.count(ctx, pool, r, b.cfg.messages)
			if err != nil {
				pool.Close()
				return fmt.Errorf("%s, %s: %w", r.name, isolation, err)
			}
			c.isolation = isolation
			p.counts = append(p.counts, c)
		}
		pool.Close()
	}
	return nil
}

func (b *bench) count(ctx context.Context, db *pgxpool.Pool, r rival, messages int) (count, error) {
	c := count{rival: r.name, says: r.says, messages: messages}
	_, err := b.one.Exec(ctx, dropIndex+`; TRUNCATE bench_effects; CREATE INDEX bench_effects_id ON bench_effects (id)`)
	if err != nil {
		return c, err
	}
	defer b.one.Exec(context.WithoutCancel(ctx), dropIndex) //nolint:errcheck // the next use drops it, too

	prefix := ascending() + "_"
	var mu sync.Mutex
	var again []message
	var firstErr error
	queue := make(chan message)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for m := range queue {
				died, err := deliverIn(ctx, db, r, m)
				mu.Lock()
				c.deliveries++
				if died || err != nil {
					again = append(again, m)
				}
				if died {
					c.crashes++
				} else if err != nil {
					c.failed++
				}
				mu.Unlock()
				if died || err != nil {
					continue
				}
				// Over a connection of its own: what is acknowledged has to be seen by everybody.
				there := false
				err = b.many.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bench_effects WHERE id = $1::text)`, m.id).Scan(&there)
				mu.Lock()
				if err != nil && firstErr == nil {
					firstErr = err
				} else if !there {
					c.wrong++
				}
				mu.Unlock()
			}
		})
	}
	for i := range messages {
		m := message{id: fmt.Sprint(prefix, i)}
		var once atomic.Bool
		m.between = func(tx pgx.Tx) {
			time.Sleep(work)
			if i%crashEvery == 0 && !once.Swap(true) {
				tx.Conn().PgConn().Conn().Close()
				runtime.Goexit()
			}
		}
		for range copies {
			queue <- m
		}
	}
	close(queue)
	wg.Wait()
	for try := 0; len(again) > 0 && firstErr == nil; try++ {
		if try == 50 {
			return c, fmt.Errorf("%d deliveries were never acknowledged", len(again))
		}
		rest := again
		again = nil
		for _, m := range rest {
			died, err := deliverIn(ctx, db, r, m)
			c.deliveries++
			switch {
			case died:
				c.crashes++
				again = append(again, m)
			case err != nil:
				c.failed++
				again = append(again, m)
			}
		}
	}
	if firstErr != nil {
		return c, firstErr
	}
	err = b.one.QueryRow(ctx, `
		SELECT $1::int - count(*), count(*) FILTER (WHERE n > 1)
		  FROM (SELECT count(*) FROM bench_effects WHERE starts_with(id, $2::text) GROUP BY id) AS e (n)`,
		messages, prefix).Scan(&c.lost, &c.doubled)
	if err != nil {
		return c, err
	}
	c.wal, err = b.walOfDuplicates(ctx, db, r, message{id: fmt.Sprint(prefix, 1)})
	return c, err
}

// deliverIn delivers on a goroutine of its own, so that it can die. died says that it did.
func deliverIn(ctx context.Context, db *pgxpool.Pool, r rival, m message) (died bool, err error) {
	died = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err = r.deliver(ctx, db, m)
		died = false
	}()
	<-done
	return died, err
}

// walOfDuplicates returns how many bytes of the write-ahead log a duplicate costs. Others write on a server that
// is not this program's own: so it is the least of a few rounds.
func (b *bench) walOfDuplicates(ctx context.Context, db *pgxpool.Pool, r rival, m message) (int64, error) {
	const rounds, each = 5, 20
	least := int64(-1)
	for range rounds {
		var from string
		if err := b.one.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&from); err != nil {
			return 0, err
		}
		for range each {
			if _, err := r.deliver(ctx, db, m); err != nil {
				return 0, err
			}
		}
		var n int64
		err := b.one.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::bigint`, from).Scan(&n)
		if err != nil {
			return 0, err
		}
		if n /= each; least < 0 || n < least {
			least = n
		}
	}
	return least, nil
}
