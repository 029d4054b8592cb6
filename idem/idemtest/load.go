package idemtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// LoadReport is what [Kit.Load] measured. Times are of single calls, from one process with Workers workers on this
// machine: good for comparing two versions of a handler, not for planning a cluster.
type LoadReport struct {
	Fresh, Hot Latency
	Errors     int // deliveries that ended with an error, and were made again
}

// Latency is the speed of one kind of delivery.
type Latency struct {
	Deliveries         int
	Rate               float64 // a second, of all workers together
	P50, P95, P99, Max time.Duration
}

// String returns a line.
func (l Latency) String() string {
	return fmt.Sprintf("%d deliveries, %.0f a second, p50 %v, p95 %v, p99 %v, max %v",
		l.Deliveries, l.Rate, round(l.P50), round(l.P95), round(l.P99), round(l.Max))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// Load measures the handler for Duration: half of it with new events (made by Event; without it there is no such half),
// half with hot keys, where all workers deliver the Deliveries over and over. It logs and returns what it measured. It
// fails if a delivery is not acknowledged in time, or if repeated deliveries changed the tables.
func (k Kit[D]) Load(t TB) LoadReport {
	t.Helper()
	var report LoadReport
	run(t, k, part[D]{"Load", func(l *lab[D]) error { return l.load(&report) }})
	return report
}

func (l *lab[D]) load(report *LoadReport) error {
	st, b, err := l.stage()
	if err != nil {
		return err
	}
	a, err := l.act(st, newWire(nil))
	if err != nil {
		return err
	}
	defer a.close()
	half := l.Duration / 2
	report.Hot, err = l.measure(st, a, half, &report.Errors,
		func(_ int, r *rand.Rand) D { return l.Deliveries[r.IntN(len(l.Deliveries))] })
	if err != nil {
		return err
	}
	for i, d := range l.Deliveries { // those that chance left out
		if err := l.redeliver(a, d); err != nil {
			return &finding{sentence: fmt.Sprintf("%s was not acknowledged: %v", l.name(i), err), database: st.name}
		}
	}
	got, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	if d := diff(b.states[len(l.Deliveries)], got); len(d) > 0 {
		return &finding{
			sentence: fmt.Sprintf("%d deliveries of %d events by %d workers: %s: %s", report.Hot.Deliveries, len(l.Deliveries),
				l.Workers, summary(d), l.raced(b)),
			rows: lines(d), database: st.name,
		}
	}
	if l.Event != nil {
		if report.Fresh, err = l.measure(st, a, half, &report.Errors,
			func(n int, _ *rand.Rand) D { return l.Event(n) }); err != nil {
			return err
		}
		l.said = fmt.Sprintf("\n\tnew events: %v", report.Fresh)
	}
	l.said += fmt.Sprintf("\n\thot keys: %v\n\t%d ended with an error and were made again", report.Hot, report.Errors)
	return nil
}

// measure makes deliveries for a time.
func (l *lab[D]) measure(
	st *stage, a *acting[D], lasts time.Duration, failed *int, next func(n int, r *rand.Rand) D,
) (Latency, error) {
	var count, again atomic.Int64
	var mu sync.Mutex
	var times []time.Duration
	var firstErr error
	begun := time.Now()
	var wg sync.WaitGroup
	for n := range l.Workers {
		r := rand.New(rand.NewPCG(l.Seed, uint64(n)+1)) //nolint:gosec // not a secret
		wg.Go(func() {
			var own []time.Duration
			for time.Since(begun) < lasts {
				d := next(int(count.Add(1)), r)
				start := time.Now()
				err := l.deliver(l.ctx, a, d)
				own = append(own, time.Since(start))
				if err != nil {
					again.Add(1)
					if err := l.redeliver(a, d); err != nil {
						mu.Lock()
						firstErr = &finding{
							sentence: fmt.Sprintf("a delivery under load was never acknowledged: %v", err),
							database: st.name,
						}
						mu.Unlock()
						return
					}
				}
			}
			mu.Lock()
			times = append(times, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	took := time.Since(begun)
	*failed += int(again.Load())
	if firstErr != nil || len(times) == 0 {
		return Latency{}, firstErr
	}
	slices.Sort(times)
	at := func(part float64) time.Duration { return times[min(len(times)-1, int(part*float64(len(times))))] }
	return Latency{len(times), float64(len(times)) / took.Seconds(), at(0.50), at(0.95), at(0.99), times[len(times)-1]},
		nil
}
