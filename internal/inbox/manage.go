package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Depth is what is in a table that is not finished.
type Depth struct {
	Waiting, Due, Behind, Taken, Dead int64
	Oldest                            time.Duration
}

// Depth counts it.
func (s SQL) Depth(ctx context.Context, conn pg.Conn) (Depth, error) {
	var d Depth
	var age int64
	dest := []any{&d.Waiting, &d.Due, &d.Behind, &d.Taken, &d.Dead, &age}
	err := conn.Send(ctx, &pg.Stmt{SQL: s.depth, Dest: dest})
	d.Oldest = time.Duration(age) * time.Microsecond
	return d, err
}

// Filter chooses messages. Its fields are those of package inbox.
type Filter struct {
	State                         State
	Source, Operation             string
	IDs                           []string
	ErrorClass                    string
	ReceivedAfter, ReceivedBefore time.Time
}

var errState = errors.New("the filter's state is none, or none for this call")

func (f Filter) args(allowed ...State) ([]any, error) {
	if f.State == 0 {
		f.State = Dead
	}
	if !slices.Contains(allowed, f.State) {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errState)
	}
	for _, text := range append([]string{f.Source, f.Operation, f.ErrorClass}, f.IDs...) {
		if !storable(text) {
			return nil, fmt.Errorf("%w: the filter holds a NUL byte or is not UTF-8", ErrInvalid)
		}
	}
	var ids any
	if f.IDs != nil {
		text, err := json.Marshal(f.IDs)
		if err != nil {
			return nil, err
		}
		ids = string(text)
	}
	micros := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return t.UnixMicro()
	}
	return []any{
		int64(f.State), f.Source, f.Operation, f.ErrorClass, ids, micros(f.ReceivedAfter), micros(f.ReceivedBefore),
	}, nil
}

// List returns messages, the oldest first.
func (s SQL) List(ctx context.Context, conn pg.Conn, f Filter, limit int) ([]Message, error) {
	args, err := f.args(Waiting, Handled, Dead, Discarded)
	if err != nil {
		return nil, err
	}
	var all []Message
	err = conn.Query(ctx, s.list, append(args, int64(limit)), func(scan func(...any) error) error {
		var m Message
		var headers string
		var at, state, attempt int64
		err := scan(&m.ID, &m.Operation, &m.Source, &m.Key, &headers, &m.Body, &at, &state, &attempt, &m.ErrorClass,
			&m.LastError)
		if err != nil {
			return err
		}
		m.ReceivedAt, m.State, m.Attempt = time.UnixMicro(at), State(state), int(attempt)
		m.Headers, err = parseHeaders(headers)
		all = append(all, m)
		return err
	})
	return all, err
}

// Replay has messages that are not waiting handled again. For alone see [anew].
func (s SQL) Replay(ctx context.Context, conn, alone pg.Conn, f Filter) (n int64, err error) {
	args, err := f.args(Handled, Dead, Discarded)
	if err != nil {
		return 0, err
	}
	replay := &pg.Stmt{SQL: s.replay, Args: args, Dest: []any{new(int64)}}
	err = anew(conn, alone, func(conn pg.Conn) error {
		replay.Rows, replay.Done = 0, false
		return conn.Send(ctx, replay)
	})
	return replay.Rows, err
}

// Discard gives dead messages up. The next message of each key is due at once.
func (s SQL) Discard(ctx context.Context, db pg.DB, f Filter) (n int64, err error) {
	args, err := f.args(Dead)
	if err != nil {
		return 0, err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	freed := map[string]bool{}
	err = tx.Query(ctx, s.discard, args, func(scan func(...any) error) error {
		var key string
		n++
		err := scan(&key)
		freed[key] = true
		return err
	})
	if err != nil {
		_ = tx.Rollback(ctx)
		return 0, err
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	delete(freed, "")
	for _, key := range slices.Sorted(maps.Keys(freed)) {
		if err := s.free(ctx, db, key); err != nil {
			return n, fmt.Errorf("discarded, but the next purge makes due what waits behind: %w", err)
		}
	}
	return n, nil
}

// free makes the first message of a key due. It comes behind the COMMIT that has ended another one: of two that end
// at once, each still sees the other as unfinished. And it looks twice: at first it may wait for the end of a
// handler, which has looked before that COMMIT.
func (s SQL) free(ctx context.Context, db pg.DB, key string) error {
	for range 2 {
		tx, err := db.Begin(ctx, &pg.Stmt{SQL: s.promote, Args: []any{key}})
		if err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Purged is what a purge has done.
type Purged struct{ Bodies, Keys int64 }

// purgeBatch is how many messages a statement of a purge takes.
const purgeBatch = 1000

// Purge empties what was finished before bodies, and deletes what was finished before keys, in batches of which each
// is committed by itself. And it makes due what waits for nothing.
func (s SQL) Purge(ctx context.Context, conn pg.Conn, bodies, keys time.Duration) (Purged, error) {
	var p Purged
	for _, step := range []struct {
		sql string
		age time.Duration
		sum *int64
	}{{s.purgeKeys, keys, &p.Keys}, {s.purgeBodies, bodies, &p.Bodies}} {
		for n := int64(purgeBatch); n == purgeBatch; {
			args := []any{step.age.Microseconds(), int64(purgeBatch)}
			if err := conn.Send(ctx, &pg.Stmt{SQL: step.sql, Args: args, Dest: []any{&n}}); err != nil {
				return p, err
			}
			*step.sum += n
		}
	}
	return p, conn.Send(ctx, &pg.Stmt{SQL: s.heal, Dest: []any{new(int64)}})
}

// Notify wakes the workers that listen on the channel.
func Notify(ctx context.Context, conn pg.Conn, channel string) error {
	var none *string
	return conn.Send(ctx, &pg.Stmt{SQL: notifySQL, Args: []any{channel}, Dest: []any{&none}})
}
