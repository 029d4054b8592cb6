package idemtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// copies is how often Concurrent makes each delivery, at least.
const copies = 12

// Concurrent makes the deliveries from Workers workers, each many times, in an order chosen by the Seed. Some are
// broken off so that they roll back: by a context that ends at a statement, or by a lost connection. Whatever ends with
// an error is made again. It fails unless all are acknowledged in the end, and the tables (and the Probe) are as if
// each had been made once.
func (k Kit[D]) Concurrent(t TB) {
	t.Helper()
	run(t, k, part[D]{"Concurrent", (*lab[D]).concurrent})
}

func (l *lab[D]) concurrent() error {
	st, b, err := l.stage()
	if err != nil {
		return err
	}
	before, err := l.probe()
	if err != nil {
		return err
	}
	queue := l.queue()
	errs := make(chan error, len(queue))
	var next, broken atomic.Int64
	var wg sync.WaitGroup
	for n := range l.Workers {
		r := rand.New(rand.NewPCG(l.Seed, uint64(n)+1)) //nolint:gosec // not a secret
		wg.Go(func() {
			a, err := l.act(st, newWire(nil))
			if err != nil {
				errs <- err
				return
			}
			defer a.close()
			for {
				at := int(next.Add(1)) - 1
				if at >= len(queue) {
					return
				}
				i := queue[at]
				if r.IntN(3) == 0 && l.breakOff(st, b, i, r) {
					broken.Add(1)
					continue // acknowledged, or made again by its copy at the end
				}
				if err := l.redeliver(a, l.Deliveries[i]); err != nil {
					errs <- &finding{sentence: fmt.Sprintf("%s was never acknowledged, made by %d workers: %v", l.name(i), l.Workers,
						err), database: st.name}
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	a, err := l.act(st, newWire(nil))
	if err != nil {
		return err
	}
	defer a.close()
	for i := range l.Deliveries {
		if err := l.redeliver(a, l.Deliveries[i]); err != nil {
			return &finding{
				sentence: fmt.Sprintf("%s was not acknowledged after all the others: %v", l.name(i), err),
				database: st.name,
			}
		}
	}
	if f := l.leftOpen(a, len(l.Deliveries)-1, "after all the others"); f != nil {
		return f
	}
	got, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d deliveries of %d events by %d workers, %d of them broken off and made again", len(queue),
		len(l.Deliveries), l.Workers, broken.Load())
	if d := diff(b.states[len(l.Deliveries)], got); len(d) > 0 {
		return &finding{sentence: fmt.Sprintf("%s: %s: %s", what, summary(d), l.raced(b)), rows: lines(d), database: st.name}
	}
	after, err := l.probe()
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, lines := range b.probes {
		for line, n := range lines {
			want[line] += n
		}
	}
	if sentence, rows := probeDiff(want, since(before, after)); l.Probe != nil && sentence != "" {
		return &finding{sentence: fmt.Sprintf("%s: %s", what, sentence), rows: rows, database: st.name}
	}
	l.said = ", " + what
	return nil
}

// queue lists what to deliver, shuffled.
func (l *lab[D]) queue() (all []int) {
	for i := range l.Deliveries {
		for range max(copies, 2*l.Workers/len(l.Deliveries)) {
			all = append(all, i)
		}
	}
	l.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// breakOff makes a delivery that ends early, at a statement chosen at random: its context ends, or its connection is
// lost. It returns false where that could not be done.
func (l *lab[D]) breakOff(st *stage, b *baseline, i int, r *rand.Rand) bool {
	n := len(sent(b.traces[i]))
	if n == 0 {
		return false
	}
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	mode, do := faultconn.Reset, func(faultconn.Message) {}
	if r.IntN(2) == 0 {
		mode, do = faultconn.Pass, func(m faultconn.Message) { cancel() }
	}
	a, err := l.act(st, newCut(faultconn.Statement, 1+r.IntN(n), mode, do))
	if err != nil {
		return false
	}
	defer a.close()
	_ = l.deliver(ctx, a, l.Deliveries[i]) // whatever it says, all are made once more at the end
	return true
}
