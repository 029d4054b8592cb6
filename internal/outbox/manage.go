package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Lag is what waits in a table.
type Lag struct {
	Waiting, Held, Parked int64
	Oldest                time.Duration
}

// Lag counts what waits.
func (s SQL) Lag(ctx context.Context, conn pg.Conn) (Lag, error) {
	var l Lag
	var age int64
	err := conn.Send(ctx, &pg.Stmt{SQL: s.lag, Dest: []any{&l.Waiting, &l.Held, &l.Parked, &age}})
	l.Oldest = time.Duration(age) * time.Microsecond
	return l, err
}

// Parked lists parked events, the oldest first.
func (s SQL) Parked(ctx context.Context, conn pg.Conn, limit int) ([]Event, error) {
	var all []Event
	err := conn.Query(ctx, s.parked, []any{int64(limit)}, func(scan func(...any) error) error {
		var e Event
		var headers string
		var at, attempts int64
		if err := scan(&e.ID, &e.Topic, &e.Key, &headers, &e.Payload, &at, &attempts, &e.LastError); err != nil {
			return err
		}
		e.AppendedAt, e.Attempt = time.UnixMicro(at), int(attempts)
		e.Headers, _ = headersOf(headers) // its last error says it
		all = append(all, e)
		return nil
	})
	return all, err
}

// Retry makes parked events due again, with all their attempts; all of them where no id is given.
func (s SQL) Retry(ctx context.Context, db pg.DB, ids ...string) (n int64, err error) {
	var list any
	if len(ids) > 0 {
		if list, err = uuids(ids); err != nil {
			return 0, err
		}
	}
	err = s.alone(ctx, db, func(tx pg.OwnTx) error {
		return tx.Query(ctx, s.retry, []any{list}, func(scan func(...any) error) error {
			n++
			return scan(new(int64))
		})
	})
	return n, err
}

// Discard deletes parked events. The next event of each key is due at once.
func (s SQL) Discard(ctx context.Context, db pg.DB, ids ...string) (n int64, err error) {
	list, err := uuids(ids)
	if err != nil {
		return 0, err
	}
	err = s.alone(ctx, db, func(tx pg.OwnTx) error {
		freed := map[int64][]string{}
		err := tx.Query(ctx, s.discard, []any{list}, func(scan func(...any) error) error {
			var lane int64
			var key string
			n++
			err := scan(&lane, &key)
			if key != "" {
				freed[lane] = append(freed[lane], key)
			}
			return err
		})
		if err != nil {
			return err
		}
		for lane, keys := range freed {
			stmts, err := s.heads(lane, keys)
			if err != nil {
				return err
			}
			if err := tx.Send(ctx, stmts...); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// alone calls f in a transaction, while no relay writes down what failed: it would give a key its first event from
// what it sees.
func (s SQL) alone(ctx context.Context, db pg.DB, f func(pg.OwnTx) error) error {
	tx, err := db.Begin(ctx, &pg.Stmt{SQL: s.lockLanes, Dest: []any{new(int64)}})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

func uuids(ids []string) (string, error) {
	for _, id := range ids {
		if !isUUID(id) {
			return "", fmt.Errorf("%w: an id is not a UUID in its usual form", ErrInvalid)
		}
	}
	return "{" + strings.Join(ids, ",") + "}", nil
}

// Notify wakes the relays that listen on the channel. It holds nothing but a number of the server's queue.
func Notify(ctx context.Context, conn pg.Conn, channel string) error {
	var none *string
	return conn.Send(ctx, &pg.Stmt{SQL: notifySQL, Args: []any{channel}, Dest: []any{&none}})
}
