package idemtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// DoubleSubmit makes each delivery Workers times at once, then once more, and all of them again at the end. It fails
// unless every one is acknowledged, and the tables (and the Probe) are then as if each had been made once.
//
// Deliveries made at once wait for each other before their first write, so what a handler only looked at is out of
// date. What then fails with an error is delivered again, as a broker would.
func (k Kit[D]) DoubleSubmit(t TB) {
	t.Helper()
	run(t, k, part[D]{"DoubleSubmit", (*lab[D]).doubleSubmit})
}

func (l *lab[D]) doubleSubmit() error {
	st, b, err := l.stage()
	if err != nil {
		return err
	}
	// In sequence first: a handler that fails this needs no other explanation.
	if err := l.inSequence(st, b); err != nil {
		return err
	}
	if err := st.reset(l.ctx); err != nil {
		return err
	}
	for i := range l.Deliveries {
		if err := l.atOnce(st, b, i); err != nil {
			return err
		}
	}
	return nil
}

// inSequence makes each delivery twice, one after the other, and then all of them again.
func (l *lab[D]) inSequence(st *stage, b *baseline) error {
	n := len(l.Deliveries)
	for round := range 2*n + n {
		i, again := round/2, round%2 == 1
		if round >= 2*n {
			i, again = round-2*n, true
		}
		want := b.states[i+1]
		if round >= 2*n {
			want = b.states[n]
		}
		err := l.once(st, b, i, again, want)
		if err != nil {
			return err
		}
	}
	return nil
}

// once makes one delivery in a sequence.
func (l *lab[D]) once(st *stage, b *baseline, i int, again bool, want snapshot) error {
	before, err := l.probe()
	if err != nil {
		return err
	}
	earlier, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	w := newWire(nil)
	a, err := l.act(st, w)
	if err != nil {
		return err
	}
	defer a.close()
	which := "made for the first time"
	if again {
		which = "made a second time, after it had been acknowledged"
	}
	if err := l.deliver(l.ctx, a, l.Deliveries[i]); err != nil {
		return &finding{
			sentence: fmt.Sprintf("%s, %s, was refused, so that its sender goes on sending it: %v; a duplicate is a success",
				l.name(i), which, err),
			database: st.name,
		}
	}
	if f := l.leftOpen(a, i, which); f != nil {
		return f
	}
	if a.db.early() {
		return &finding{
			sentence: fmt.Sprintf("%s, %s: HTTP 2xx before COMMIT: the status was written while the transaction was open, "+
				"and can no longer tell of a COMMIT that fails", l.name(i), which),
			database: st.name,
		}
	}
	got, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	if d := diff(want, got); len(d) > 0 {
		why := other
		if again {
			why = misuseOfRepeat(diff(earlier, got))
			if l.lostKey(b, i) {
				why = keyUndone
			}
		}
		return &finding{
			sentence: fmt.Sprintf("%s, %s: %s: %s", l.name(i), which, summary(d), why),
			rows:     lines(d), database: st.name,
		}
	}
	after, err := l.probe()
	if err != nil || l.Probe == nil {
		return err
	}
	fresh := map[string]int{}
	if !again {
		fresh = b.probes[i]
	}
	if sentence, rows := probeDiff(fresh, since(before, after)); sentence != "" {
		return &finding{
			sentence: fmt.Sprintf("%s, %s: %s: the effect does not depend on the key", l.name(i), which, sentence),
			rows:     rows, database: st.name,
		}
	}
	return nil
}

// atOnce makes one delivery by all workers at once.
func (l *lab[D]) atOnce(st *stage, b *baseline, i int) error {
	before, err := l.probe()
	if err != nil {
		return err
	}
	g := newGate(l.Workers)
	w := newWire(g.wait)
	a, err := l.act(st, w)
	if err != nil {
		return err
	}
	defer a.close()
	a.db.warm(l.ctx, l.Workers) // or they would come one after the other
	errs := make([]error, l.Workers)
	var wg sync.WaitGroup
	for n := range l.Workers {
		wg.Go(func() { errs[n] = l.redeliver(a, l.Deliveries[i]) })
	}
	wg.Wait()
	which := fmt.Sprintf("made %d times at once", l.Workers)
	for _, err := range errs {
		if err != nil {
			return &finding{
				sentence: fmt.Sprintf("%s, %s, was not acknowledged to all: %v", l.name(i), which, err),
				database: st.name,
			}
		}
	}
	if f := l.leftOpen(a, i, which); f != nil {
		return f
	}
	got, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	if d := diff(b.states[i+1], got); len(d) > 0 {
		return &finding{
			sentence: fmt.Sprintf("%s, %s: %s: %s", l.name(i), which, summary(d), misuseOfRace(w.script.Trace())),
			rows:     lines(d), database: st.name,
		}
	}
	after, err := l.probe()
	if err != nil || l.Probe == nil {
		return err
	}
	if sentence, rows := probeDiff(b.probes[i], since(before, after)); sentence != "" {
		return &finding{
			sentence: fmt.Sprintf("%s, %s: %s: it is not made by the transaction that won", l.name(i), which, sentence),
			rows:     rows, database: st.name,
		}
	}
	return nil
}

// gate holds connections before their first write, until as many have come as there are workers, or no further one
// comes.
type gate struct {
	mu      sync.Mutex
	missing int
	seen    map[int]bool
	open    chan struct{}
	came    chan struct{}
}

// patience is how long those who wait at a gate wait for another one. A handler that takes a lock first lets one
// through.
const patience = time.Second

func newGate(workers int) *gate {
	return &gate{missing: workers, seen: map[int]bool{}, open: make(chan struct{}), came: make(chan struct{}, workers)}
}

func (g *gate) wait(m faultconn.Message) {
	if !mayWrite(m.SQL) {
		return
	}
	g.mu.Lock()
	if g.seen[m.Conn] || g.missing <= 0 {
		g.mu.Unlock()
		return
	}
	g.seen[m.Conn] = true
	if g.missing--; g.missing == 0 {
		close(g.open)
	}
	g.mu.Unlock()
	g.came <- struct{}{}
	for {
		select {
		case <-g.open:
			return
		case <-g.came:
		case <-time.After(patience):
			g.mu.Lock()
			if g.missing > 0 {
				g.missing = 0
				close(g.open)
			}
			g.mu.Unlock()
			return
		}
	}
}
