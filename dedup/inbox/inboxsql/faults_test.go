package inboxsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// quick is a worker that does not wait between attempts.
func quick() inbox.Worker {
	return inbox.Worker{MinRetry: time.Microsecond, MaxRetry: time.Microsecond, Lease: 20 * time.Millisecond}
}

// finish drains until nothing waits.
func finish(t *testing.T, db *sql.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := inboxsql.Drain(t.Context(), db, quick(), insert)
		require.NoError(t, err)
		return count(t, db, `SELECT count(*) FROM inbox WHERE state <> 2`) == 0
	}, 20*time.Second, 5*time.Millisecond)
}

// A worker whose connection is cut at any message of the protocol, in either direction, before or behind it, handles
// each message once, in order; what it told is true. All but one of the doors are cut at statements alone.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()
	forEachDoor(t, func(t *testing.T, d door, dsn string, db *sql.DB) {
		execSQL(t, db, `ALTER TABLE effects ADD n bigint GENERATED ALWAYS AS IDENTITY`)
		ids := []string{"k-1", "k-2", "free"}
		prepared := func(t *testing.T) {
			execSQL(t, db, `TRUNCATE inbox, effects`)
			put(t, db, ids...)
		}
		sides, when := []faultconn.Side{faultconn.Frontend, faultconn.Backend}, func(faultconn.Message) bool { return true }
		if d.name != "pgx/exec" {
			sides, when = sides[:1], faultconn.Statement
		}
		var counts [faultconn.Backend + 1]atomic.Int64
		counted := &faultconn.Script{When: func(m faultconn.Message) bool {
			if when(m) {
				counts[m.From].Add(1)
			}
			return false
		}}
		prepared(t)
		_, err := d.open(t, dsn, counted)(t.Context(), quick(), effect)
		require.NoError(t, err)
		finish(t, db)
		told, cuts := 0, 0
		for _, from := range sides {
			for n := 1; n <= int(counts[from].Load()); n++ {
				if !pgtest.Full() && d.name == "pgx/exec" && n%5 != 1 {
					continue // it has most cuts by far
				}
				for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply} {
					if from == faultconn.Backend && mode == faultconn.DropReply {
						continue
					}
					cuts++
					t.Run(fmt.Sprintf("%v %d %v", from, n, mode), func(t *testing.T) {
						prepared(t)
						s := &faultconn.Script{From: from, When: when, N: n, Mode: mode}
						w := quick()
						handled := map[string]int{}
						w.Done = func(_ context.Context, m inbox.Message, err error) {
							if err == nil {
								handled[m.ID]++
							}
						}
						drain := d.open(t, dsn, s)
						for range 3 {
							_, _ = drain(context.Background(), w, effect)
						}
						require.Equal(t, 1, s.Hits(), "%v", s)
						for id, n := range handled {
							require.Equal(t, 1, n, id)
							require.Equal(t, 1, count(t, db, `SELECT count(*) FROM inbox WHERE state = 2 AND message_id = $1`, id), "%v", s)
						}
						told += len(handled)
						finish(t, db)
						require.Equal(t, 3, count(t, db, `SELECT count(*) FROM effects`), "%v", s)
						require.Equal(t, 3, count(t, db, `SELECT count(DISTINCT id) FROM effects`), "%v", s)
						require.Equal(t, 1, count(t, db, `SELECT count(*) FROM effects AS a, effects AS b
							WHERE a.id = 'k-1' AND b.id = 'k-2' AND a.n < b.n`), "%v", s)
					})
				}
			}
		}
		t.Logf("%d cuts", cuts)
		require.Positive(t, told)
	})
}

// The COMMIT of a completion that is not answered is settled: where it took place the message is handled, and where
// not it comes again, at once or when the server has ended the session that holds it.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]faultconn.Mode{
		"not sent":     faultconn.DropBefore,
		"not answered": faultconn.DropReply,
	} {
		for _, ids := range [][]string{{"1", "2"}, {"k-1", "k-2"}} {
			t.Run(name+" "+ids[0], func(t *testing.T) {
				t.Parallel()
				forEachDoor(t, func(t *testing.T, d door, dsn string, db *sql.DB) {
					put(t, db, ids...)
					s := &faultconn.Script{When: faultconn.Commit, N: 2, Mode: mode} // the first is the claim's
					o := &observer{}
					w := quick()
					w.Lease, w.Table.Observer = 0, o
					stats, err := d.open(t, dsn, s)(t.Context(), w, effect)
					require.Equal(t, 1, s.Hits())
					if mode == faultconn.DropReply {
						require.NoError(t, err)
						require.Equal(t, inbox.Stats{Handled: 2}, stats)
						require.Equal(t, []dedup.Outcome{dedup.Executed, dedup.Executed}, o.whats)
					} else {
						require.Error(t, err)
						require.Equal(t, inbox.Stats{Handled: 2, Failed: 1}, stats)
						require.Equal(t, dedup.Failed, o.whats[0])
						require.ElementsMatch(t, []dedup.Outcome{dedup.Failed, dedup.Executed, dedup.Executed}, o.whats)
					}
					require.Equal(t, 2, count(t, db, `SELECT count(DISTINCT id) FROM effects`))
					require.Equal(t, 2, count(t, db, `SELECT count(*) FROM effects`))
					require.Equal(t, 2, count(t, db, `SELECT count(*) FROM inbox WHERE state = 2`))
				})
			})
		}
	}
}

// A COMMIT of unknown outcome, with the server out of reach: it is an error, and said to be unknown. Whoever looks
// later finds what there is.
func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]faultconn.Mode{
		"not sent":     faultconn.DropBefore,
		"not answered": faultconn.DropReply,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDoor(t, func(t *testing.T, d door, dsn string, db *sql.DB) {
				put(t, db, "1")
				s := &faultconn.Script{When: faultconn.Commit, N: 2, Mode: mode, Refuse: true}
				o := &observer{}
				w := quick()
				w.Table.Observer = o
				_, err := d.open(t, dsn, s)(t.Context(), w, effect)
				require.ErrorContains(t, err, "unknown")
				require.Equal(t, []dedup.Outcome{dedup.Unknown}, o.whats)
				s.Release()
				finish(t, db)
				require.Equal(t, 1, count(t, db, `SELECT count(*) FROM effects`))
			})
		})
	}
}

// observer keeps what one goroutine tells it.
type observer struct{ whats []dedup.Outcome }

func (o *observer) Observe(_ context.Context, e dedup.Event) { o.whats = append(o.whats, e.Outcome) }
