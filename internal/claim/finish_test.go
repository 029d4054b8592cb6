package claim

import (
	"context"
	"testing"

	"github.com/pgonce/pgonce/internal/pg"
)

// Finish, of a reservation: as Run, with a lease instead of a claim.
func TestFinishUnit(t *testing.T) {
	t.Parallel()
	const once = "BEGIN UPDATE COMMIT"
	free := turn{free: true, id: 7}
	gone := turn{free: true, id: 7, commit: errGone}
	mine := &Record{Done: true, Attempt: 2, ProcessedAt: 5}
	for _, c := range []struct {
		name  string
		turns []turn
		fn    []error
		want
	}{
		{"confirmed", []turn{free}, nil, want{0, nil, false, 1, once}},
		{"lease is lost", []turn{{}}, nil, want{0, []error{ErrLostLease}, false, 0, "BEGIN UPDATE SELECT ROLLBACK"}},
		{"fn fails", []turn{free}, []error{errFn}, want{0, []error{errFn}, false, 1, "BEGIN UPDATE ROLLBACK"}},
		{
			"lost, and it took place",
			[]turn{gone, {row: mine, own: true, id: 7}},
			nil,
			want{0, nil, false, 1, once + " BEGIN UPDATE SELECT ROLLBACK"},
		},
		{
			"lost, and another attempt's",
			[]turn{gone, {row: &Record{Done: true, Attempt: 3, ProcessedAt: 5}}},
			nil,
			want{0, []error{ErrLostLease}, false, 1, once + " BEGIN UPDATE SELECT ROLLBACK"},
		},
		{
			"lost, and another row",
			[]turn{gone, {row: &Record{Done: true, Attempt: 2, ProcessedAt: 6}}},
			nil,
			want{0, []error{ErrLostLease, errGone}, true, 1, once + " BEGIN UPDATE SELECT ROLLBACK"},
		},
		{
			"lost, and no row",
			[]turn{gone, {}},
			nil,
			want{0, []error{ErrLostLease, errGone}, true, 1, once + " BEGIN UPDATE SELECT ROLLBACK"},
		},
		{
			"lost, it did not, fn fails",
			[]turn{gone, free},
			[]error{nil, errFn},
			want{0, []error{errFn}, false, 2, once + " BEGIN UPDATE ROLLBACK"},
		},
		{
			"lost, it did not, and its token says nothing any more",
			[]turn{gone, {free: true, id: 8, check: pg.ErrTxFailed}, {row: mine, own: true, id: 7}},
			[]error{nil, errSerial},
			want{0, []error{ErrLostLease}, false, 2, once + " BEGIN UPDATE ROLLBACK BEGIN UPDATE SELECT ROLLBACK"},
		},
		{
			"lost, and nothing can be asked",
			[]turn{gone, {begin: errGone}, {begin: errGone}},
			nil,
			want{0, []error{errGone}, true, 1, once + " BEGIN BEGIN"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := fakeClaim(t)
			db := &fakeDB{t: t, claim: cl, turns: c.turns}
			calls := 0
			err := Held{cl, Lease{Attempt: 2, Born: 5}}.Finish(t.Context(), db, nil, func(context.Context, pg.Tx) error {
				if calls++; calls <= len(c.fn) {
					return c.fn[calls-1]
				}
				return nil
			})
			c.require(t, db, Result{}, err, calls)
		})
	}
}
