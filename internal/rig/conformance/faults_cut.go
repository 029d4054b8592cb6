package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// ways are those to run a key once, with its transaction.
var ways = map[string]func(ctx context.Context, db DB, key idem.Key) (idem.Outcome, error){
	"Run": func(ctx context.Context, db DB, key idem.Key) (idem.Outcome, error) {
		return db.Run(ctx, Settings{}, key, effect(key.ID()))
	},
	"Run with MaxWait": func(ctx context.Context, db DB, key idem.Key) (idem.Outcome, error) {
		return db.Run(ctx, Settings{MaxWait: 10 * time.Second}, key, effect(key.ID()))
	},
	"Apply":              applied(Settings{}),
	"Apply with MaxWait": applied(Settings{MaxWait: 10 * time.Second}),
	"Do":                 doAndCommit(Settings{}),
	"Do with MaxWait":    doAndCommit(Settings{MaxWait: 10 * time.Second}),
}

func applied(s Settings) func(context.Context, DB, idem.Key) (idem.Outcome, error) {
	return func(ctx context.Context, db DB, key idem.Key) (idem.Outcome, error) {
		return db.Apply(ctx, s, key, left(key.ID())...)
	}
}

func doAndCommit(s Settings) func(context.Context, DB, idem.Key) (idem.Outcome, error) {
	return func(ctx context.Context, db DB, key idem.Key) (idem.Outcome, error) {
		tx, err := db.Begin(ctx, "")
		if err != nil {
			return 0, err
		}
		// The roll back must be sent all the same where the context is done.
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = tx.Rollback(ctx)
		}()
		out, err := tx.Do(ctx, s, key, effect(key.ID()))
		if err != nil {
			return 0, err
		}
		return out, tx.Commit(ctx)
	}
}

// Cuts says what [CutAtEveryMessage] and [CancelAtEveryMessage] go through.
type Cuts struct {
	Open func(*testing.T) Breakable

	// Ways are some of "Run", "Do" and "Apply", each also "with MaxWait"; nil: all.
	Ways []string

	// Long has every fault at each message.
	Long bool
}

// CutAtEveryMessage cuts each way at every message that it exchanges, one by one, and repeats the delivery: one effect,
// always.
func CutAtEveryMessage(t *testing.T, c Cuts) {
	c.each(t, func(s breaking, way string, seen bool, key idem.Key, script *faultconn.Script) {
		db, gone := s.Broken(script)
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		out, err := ways[way](ctx, db, key)
		s.end(script, gone)
		s.checkCut(key, seen, out, err, script)
		if script.N > 0 && err != nil {
			require.True(s, strings.HasPrefix(way, "Do"), "one cut is met by the next try: %v\n%v", err, script)
			require.True(s, idem.Retryable(err), "%v\n%v", err, script)
		}
	}, func(side faultconn.Side) []faultconn.Mode {
		switch {
		case !c.Long:
			return []faultconn.Mode{faultconn.DropBefore}
		case side == faultconn.Backend:
			// A message whose reply is lost is a reply that is cut off before it comes, which the other side has.
			return []faultconn.Mode{faultconn.DropBefore, faultconn.Reset}
		default:
			return []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Reset}
		}
	})
}

// CancelAtEveryMessage cancels the context at every message, which is at every point where a call can be waiting.
func CancelAtEveryMessage(t *testing.T, c Cuts) {
	c.each(t, func(s breaking, way string, seen bool, key idem.Key, script *faultconn.Script) {
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		if script.N > 0 {
			script.Do = func(faultconn.Message) { cancel() }
		}
		db, gone := s.Broken(script)
		out, err := ways[way](ctx, db, key)
		if err != nil && !pgerr.CommitUnknown(err) && pgerr.Code(err) == "" {
			// Which of the two a driver reports depends on who was faster; it is never taken for anything else.
			require.True(s, errors.Is(err, context.Canceled) || ctx.Err() != nil, "%v", err)
		}
		s.end(script, gone)
		s.checkCut(key, seen, out, err, script)
	}, func(faultconn.Side) []faultconn.Mode { return []faultconn.Mode{faultconn.Pass} })
}

// each runs each way over a first delivery and a duplicate, in which nothing breaks, to count the messages, and then
// calls cut for each of them.
func (c Cuts) each(
	t *testing.T, cut func(s breaking, way string, seen bool, key idem.Key, script *faultconn.Script),
	faults func(faultconn.Side) []faultconn.Mode,
) {
	for way := range ways {
		if c.Ways != nil && !slices.Contains(c.Ways, way) {
			continue
		}
		for name, seen := range map[string]bool{"first": false, "duplicate": true} {
			t.Run(way+"/"+name, func(t *testing.T) {
				s, number := breakable(t, c.Open), 0
				one := func(script *faultconn.Script) {
					number++
					key := scope.Key(fmt.Sprint("evt_", number))
					if seen {
						s.deliver(key, idem.Executed)
					}
					cut(s, way, seen, key, script)
				}
				whole := &faultconn.Script{}
				one(whole)
				for _, side := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
					require.Positive(t, whole.Count(side))
					for n := 1; n <= whole.Count(side); n++ {
						for _, fault := range faults(side) {
							script := &faultconn.Script{From: side, N: n, Mode: fault}
							one(script)
							require.Equal(t, 1, script.Hits(), "message %v %d was not reached", side, n)
						}
					}
				}
				t.Logf("%d cuts", number-1)
			})
		}
	}
}

// checkCut wants that a call which met a fault told the truth, left nothing open, and that the next delivery ends well.
func (s breaking) checkCut(key idem.Key, seen bool, out idem.Outcome, err error, script *faultconn.Script) {
	s.Helper()
	effects := s.effects(key)
	require.LessOrEqual(s, effects, 1, "%v", script)
	keys := s.int(`SELECT count(*) FROM processed_events WHERE key = $1`, key)
	require.Equal(s, effects, keys, "key and effect stand or fall together\n%v", script)
	switch {
	case err == nil:
		require.Equal(s, 1, effects, "success without the effect\n%v", script)
		want := idem.Executed
		if seen {
			want = idem.Duplicate
		}
		require.Equal(s, want, out, "%v", script)
	case effects == 1 && !seen:
		// The effect is there, and the call has an error: only an unknown COMMIT may be so.
		require.True(s, pgerr.CommitUnknown(err), "%v\n%v", err, script)
	}
	s.deliver(key, idem.Executed, idem.Duplicate)
}
