package dedup_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
)

// How close do the duplicates of each source come to the end of the window? Give an Ages to the calls, and look now
// and then.
func ExampleAges() {
	table := dedup.Table{Retention: 7 * 24 * time.Hour}
	ages := &dedup.Ages{}

	// What idem tells an Observer of three duplicates:
	for _, e := range []dedup.Event{
		{Table: "processed_events", Source: "stripe", Outcome: dedup.Duplicate, Age: 40 * time.Second},
		{Table: "processed_events", Source: "stripe", Outcome: dedup.Duplicate, Age: 160 * time.Hour},
		{Table: "processed_events", Source: "billing", Outcome: dedup.Duplicate, Age: 2 * time.Hour},
	} {
		ages.Observe(context.Background(), e)
	}

	for _, a := range ages.Report(table) {
		fmt.Println(a)
		if a.Share > 0.8 {
			fmt.Println("    keep the keys for longer:", a.Within)
		}
	}
	// Output:
	// stripe: 2 duplicates, the oldest after 160h0m0s: 95 % of 168h0m0s
	//     keep the keys for longer: [1 0 0 0 0 1 0 0]
	// billing: 1 duplicates, the oldest after 2h0m0s: 1 % of 168h0m0s
}

type counter struct {
	mu sync.Mutex
	n  map[dedup.Outcome]int
}

func (c *counter) Observe(_ context.Context, e dedup.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[dedup.Outcome]int{}
	}
	c.n[e.Outcome]++
}

func TestAges(t *testing.T) {
	t.Parallel()
	next := &counter{}
	ages := &dedup.Ages{Next: next}
	require.Empty(t, ages.Report(dedup.Table{}))
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 3000 {
				e := dedup.Event{
					Table: "t", Source: fmt.Sprint("s", i), Outcome: dedup.Duplicate,
					Age: time.Duration(w) * time.Second,
				}
				ages.Observe(t.Context(), e)
				e.Outcome, e.Age = dedup.Executed, 100*time.Hour
				ages.Observe(t.Context(), e)
			}
		})
	}
	wg.Wait()
	require.Equal(t, map[dedup.Outcome]int{dedup.Duplicate: 12_000, dedup.Executed: 12_000}, next.n)
	all := ages.Report(dedup.Table{Name: "t"})
	require.LessOrEqual(t, len(all), 1001, "memory is bounded")
	require.GreaterOrEqual(t, len(all), 1000)
	var sum int64
	for _, a := range all {
		sum += a.Duplicates
		require.Equal(t, a.Duplicates, a.Within[0])
		require.Equal(t, 3*time.Second, a.Highest)
		require.InDelta(t, 3/dedup.DefaultRetention.Seconds(), a.Share, 1e-12)
	}
	require.EqualValues(t, 12_000, sum)
	require.Empty(t, ages.Report(dedup.Table{}), "another table")
	require.Empty(t, ages.Report(dedup.Table{Name: "a.b.c"}))

	ages = &dedup.Ages{}
	day := 24 * time.Hour
	for _, age := range []time.Duration{
		0, time.Minute, time.Minute + 1, time.Hour, 5 * time.Hour, day, 3 * day, 7 * day,
		30 * day, 30*day + 1, 99 * day,
	} {
		ages.Observe(t.Context(), dedup.Event{Table: "processed_events", Outcome: dedup.Duplicate, Age: age})
	}
	one := ages.Report(dedup.Table{})[0]
	require.Equal(t, [8]int64{2, 2, 1, 1, 1, 1, 1, 2}, one.Within)
	require.Equal(t, 99*day, one.Highest)
	require.Zero(t, one.Expired)
}
