package idem_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// layoutWalk is a change of layout: its files in order, and after how many of them which programs may run.
type layoutWalk struct {
	folder string
	files  []string
	make   []dedup.Table
	kinds  [][]idem.Once // kinds[i]: the programs after i files
}

// layoutWalks are the changes of layout during which keys may be reserved.
func layoutWalks() []layoutWalk {
	old, weekly := idem.Once{}, idem.Once{Table: dedup.Table{Name: "processed_events_weekly", Layout: dedup.Weekly}}
	return []layoutWalk{
		{
			"plain_to_hash",
			[]string{"1_mirror.sql", "2_backfill.sql", "3_check.sql", "4_swap.sql"},
			[]dedup.Table{{}, {Name: "processed_events_new", Layout: dedup.Hash(8)}},
			[][]idem.Once{{old}, {old}, {old}, {old}, {old}},
		},
		{
			"plain_to_weekly",
			[]string{"1_both.sql", "2_weekly_only.sql"},
			[]dedup.Table{{}, weekly.Table},
			[][]idem.Once{{old}, {old, weekly}, {weekly}},
		},
	}
}

// end is what becomes of a reservation: what its holder does, and what every program finds afterwards.
type end struct {
	name string
	do   func(w *walker, r idem.Reservation, kinds []idem.Once)
	want string // "v", "final" or "new"
}

var ends = []end{
	{"confirmed", func(w *walker, r idem.Reservation, _ []idem.Once) { w.confirm(r) }, "v"},
	{"failed", func(w *walker, r idem.Reservation, _ []idem.Once) {
		require.NoError(w, r.Fail(w.Context(), w.pool, []byte("v")))
	}, "final"},
	{"released", func(w *walker, r idem.Reservation, _ []idem.Once) {
		require.NoError(w, r.Release(w.Context(), w.pool))
	}, "new"},
	{
		"voided", func(w *walker, r idem.Reservation, _ []idem.Once) { require.NoError(w, r.Void(w.Context(), w.pool)) },
		"new",
	},
	{"extended, confirmed", func(w *walker, r idem.Reservation, _ []idem.Once) {
		require.NoError(w, r.Extend(w.Context(), w.pool, time.Minute))
		w.confirm(r)
	}, "v"},
	{"taken over, confirmed", func(w *walker, r idem.Reservation, _ []idem.Once) { w.confirm(w.takeOver(r)) }, "v"},
	{"taken over, released, voided", func(w *walker, r idem.Reservation, _ []idem.Once) {
		second := w.takeOver(r)
		require.NoError(w, second.Release(w.Context(), w.pool))
		third := w.takeOver(second)
		require.NoError(w, third.Void(w.Context(), w.pool))
	}, "new"},
	{"confirmed, forgotten", func(w *walker, r idem.Reservation, kinds []idem.Once) {
		w.confirm(r)
		require.NoError(w, pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
			forgotten := 0
			for _, kind := range kinds {
				switch err := kind.Forget(w.Context(), tx, r.Key); {
				case err == nil:
					forgotten++
				case len(kinds) == 1:
					return err
				default:
					require.ErrorIs(w, err, idem.ErrNotFound)
				}
			}
			require.Positive(w, forgotten)
			return nil
		}))
	}, "new"},
}

type walker struct {
	*traffic
	holder idem.Once
}

func (w *walker) confirm(r idem.Reservation) {
	w.Helper()
	require.NoError(w, pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		return r.Confirm(w.Context(), tx, []byte("v"))
	}))
}

// takeOver lets the lease run out, and the next attempt begin.
func (w *walker) takeOver(r idem.Reservation) (next idem.Reservation) {
	w.Helper()
	table := cmp.Or(w.holder.Table.Name, "processed_events")
	w.exec(`UPDATE ` + table + ` SET lease_until = now() WHERE lease_until < 'infinity' AND key = '` + r.Key.ID() + `'`)
	next, out, err := w.holder.Reserve(w.Context(), w.pool, r.Key, time.Minute)
	require.NoError(w, err)
	require.Equal(w, idem.Executed, out)
	require.Greater(w, next.Attempt, r.Attempt)
	require.ErrorIs(w, r.Extend(w.Context(), w.pool, time.Minute), idem.ErrLostLease)
	return next
}

// finds wants a program of each kind to find what an end has left; the first one makes a key that is new again.
func (w *walker) finds(want string, key idem.Key, kinds []idem.Once) {
	w.Helper()
	for i, kind := range kinds {
		r, out, err := kind.Reserve(w.Context(), w.pool, key, time.Minute)
		var final *idem.FinalError
		switch {
		case want == "final":
			require.ErrorAs(w, err, &final, "program %d", i)
			require.Equal(w, "v", string(final.Value))
		case want == "v" || i > 0:
			require.NoError(w, err, "program %d", i)
			require.Equal(w, idem.Duplicate, out, "program %d", i)
			require.Equal(w, "v", string(r.Value), "program %d", i)
		default:
			require.NoError(w, err, "program %d", i)
			require.Equal(w, idem.Executed, out, "program %d", i)
			require.Equal(w, 1, r.Attempt)
			(&walker{w.traffic, kind}).confirm(r)
		}
	}
}

// A reservation comes to every end, at every step of a change of layout, and the programs of each kind find the same.
func TestLayoutReservations(t *testing.T) {
	t.Parallel()
	for _, walk := range layoutWalks() {
		t.Run(walk.folder, func(t *testing.T) {
			t.Parallel()
			tr := newTraffic(t, 0)
			require.NoError(t, dedup.Migrate(t.Context(), tr.pool, walk.make...))
			type open struct {
				w       *walker
				r       idem.Reservation
				end     end
				endStep int
				first   int // which kind of program comes first, afterwards
			}
			var all []open
			for step := 0; step <= len(walk.files); step++ {
				if step > 0 {
					tr.file(walk.folder + "/" + walk.files[step-1])
				}
				kinds := walk.kinds[step]
				for _, holder := range kinds {
					for until := step; until < len(walk.kinds) && has(walk.kinds[until], holder); until++ {
						for _, e := range ends {
							for first := range walk.kinds[until] {
								key := stripe.Key(fmt.Sprint(holder.Table.Name, step, until, e.name, first)).OccurredAt(time.Now())
								w := &walker{tr, holder}
								r, out, err := holder.Reserve(t.Context(), tr.pool, key, time.Minute)
								require.NoError(t, err)
								require.Equal(t, idem.Executed, out)
								all = append(all, open{w, r, e, until, first})
							}
						}
					}
				}
				for _, o := range all {
					// While it is open, nobody runs anything.
					for _, kind := range kinds {
						if o.endStep < step {
							break
						}
						_, err := kind.Run(t.Context(), tr.pool, o.r.Key, never(t))
						require.True(t, idem.Retryable(err), "%v: %v", o.r.Key, err)
					}
					if o.endStep == step {
						t.Logf("%s, reserved in %q, %d of %d files run", o.end.name, o.w.holder.Table.Name, step, len(walk.files))
						o.end.do(o.w, o.r, kinds)
						order := append(append([]idem.Once{}, kinds[o.first:]...), kinds[:o.first]...)
						o.w.finds(o.end.want, o.r.Key, order)
					}
				}
			}
		})
	}
}

func has(all []idem.Once, one idem.Once) bool {
	for _, o := range all {
		if o.Table == one.Table {
			return true
		}
	}
	return false
}

// The home-made table cannot hold a reservation: what would be written there is a key that is done.
func TestLayoutHomeMadeRefusesReservations(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, 0)
	tr.exec(homeMadeTable)
	require.NoError(t, dedup.Migrate(t.Context(), tr.pool))
	tr.file("home_made/1_both.sql")
	_, _, err := idem.Once{}.Reserve(t.Context(), tr.pool, stripe.Key("1"), time.Minute)
	require.True(t, pgerr.Is(err, "0A000"), "%v", err)
	require.False(t, idem.Retryable(err))
	require.Zero(t, tr.count(`SELECT count(*) FROM webhook_events`))
	_, _, err = idem.Call[string]{
		Lease: time.Minute, Remembers: time.Hour,
		Send: func(context.Context, string) (string, error) { t.Error("sent"); return "", nil },
	}.Run(t.Context(), tr.pool, stripe.Key("2"))
	require.Error(t, err)
}
