package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// applyFailing has an effect of an Apply fail behind another one, which must go with it.
func applyFailing(t *testing.T, door Door) {
	failures := []struct {
		name    string
		effects []Effect
		want    func(t *testing.T, err error)
	}{
		{"constraint", []Effect{
			{`INSERT INTO business (id) VALUES ('x')`, nil},
			{`INSERT INTO business (id) VALUES ('x')`, nil},
		}, func(t *testing.T, err error) {
			require.True(t, pgerr.Is(err, "23505"), "%v", err)
			if door.Spread == "" {
				require.True(t, pgerr.Duplicate(err, "business_id_key"), "%v", err)
			}
			require.ErrorContains(t, err, "effect 2 of the batch")
		}},
		{
			"SQL error",
			[]Effect{{`SELECT 1/(count(*)-1) FROM effects WHERE what = 'half'`, nil}, {`SELECT 1`, nil}},
			func(t *testing.T, err error) {
				require.True(t, pgerr.Is(err, "22012"), "%v", err)
				require.ErrorContains(t, err, "effect 1 of the batch")
			},
		},
		// The code by which the library stops a batch itself.
		{
			"same code",
			[]Effect{{`SELECT ('a' || count(*))::int FROM effects WHERE what = 'half'`, nil}},
			func(t *testing.T, err error) {
				require.True(t, pgerr.Is(err, "22P02"), "%v", err)
			},
		},
		{"no such table", []Effect{{`INSERT INTO no_such_table VALUES (1)`, nil}}, func(t *testing.T, err error) {
			require.True(t, pgerr.Is(err, "42P01"), "%v", err)
			require.NotContains(t, err.Error(), "Migrate")
		}},
		{
			"argument",
			[]Effect{{`INSERT INTO effects (what) VALUES ($1)`, []any{make(chan int)}}},
			func(t *testing.T, err error) {},
		},
		{
			"too few arguments",
			[]Effect{{`INSERT INTO effects (what) VALUES ($1 || $2)`, []any{"half"}}},
			func(t *testing.T, err error) {},
		},
		{
			"argument's error",
			[]Effect{{`INSERT INTO effects (what) VALUES ($1)`, []any{breaks{func() {}}}}},
			func(t *testing.T, err error) {
				require.ErrorIs(t, err, errBusiness)
			},
		},
		{"deferred constraint", []Effect{{`INSERT INTO child (parent) VALUES (1)`, nil}}, func(t *testing.T, err error) {
			require.True(t, pgerr.Is(err, "23503"), "%v", err)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageCommit, own.Stage)
		}},
	}
	for _, f := range failures {
		for _, wait := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprint("Failing/", f.name, "/", wait), func(t *testing.T) {
				k := open(t, door)
				k.exec(k.db, `INSERT INTO effects (what) VALUES ('other')`)
				for range 2 {
					rec := &recorder{}
					out, err := k.db.Apply(k.ctx, Settings{MaxWait: wait, Observer: rec}, scope.Key("evt_1"),
						left("half", f.effects...)...)
					require.Error(t, err)
					require.Zero(t, out)
					f.want(t, err)
					var own *idem.Error
					require.False(t, f.name != "deferred constraint" && errors.As(err, &own), "an effect's error comes as it is: %v",
						err)
					require.False(t, pgerr.CommitUnknown(err) && own != nil, "%v", err)
					require.Equal(t, pgerr.Code(err) == "08P01", idem.Retryable(err), "%v", err) // too few arguments, in one mode
					require.Equal(t, dedup.Failed, rec.last().Outcome)
					require.Equal(t, err, rec.last().Err)
					k.wantEffects("half", 0)
					k.wantKeys(0)
				}
				k.applied(scope.Key("evt_1"), idem.Executed)
				// Of a key that is there nothing of the effects is looked at.
				if f.name != "no such table" && f.name != "argument" && f.name != "too few arguments" &&
					f.name != "argument's error" {
					out, err := k.apply(scope.Key("evt_1"), left("half", f.effects...)...)
					require.NoError(t, err)
					require.Equal(t, idem.Duplicate, out)
				}
			})
		}
	}
}
