package idemtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// Crash cuts the handler's run at every point, and delivers again until the handler acknowledges. It fails unless the
// tables (and the Probe) are then as after one undisturbed delivery.
//
// The points are found by watching one run: before and after each statement, so also before COMMIT, between COMMIT and
// its reply, and before the acknowledgement. At each point the connection is reset, then the server's session
// terminated, then the process killed (see [Child]). Before each statement the handler's context ends once, as in a
// shutdown. Each statement that writes also fails once with a serialization failure (40001), and once with a unique
// violation (23505) of a constraint that the handler cannot know.
//
// A handler that returns nil in spite of that has acknowledged: nothing is delivered again before the tables are
// compared. Deliveries that send the same statements as an earlier one are not cut again.
func (k Kit[D]) Crash(t TB) {
	t.Helper()
	run(t, k, part[D]{"Crash", (*lab[D]).crash})
}

// The faults, as they are named in a round.
const (
	resetFault = "reset"
	endFault   = "terminated"
	killFault  = "killed"
	stopFault  = "canceled"
	raceFault  = "40001"
	otherFault = "23505"
)

// point is where a delivery is cut.
type point struct {
	Delivery int
	N        int    // the how manieth statement of the delivery; 0: none, the handler has returned
	After    bool   // after it was done, before its reply
	SQL      string // of it
	Text     string // the message, as a trace shows it: without literals, so that it is the same in every run
	Nth      int    // how often the delivery has sent the same text by then
	Fault    string
}

// id names the round, for the environment variable that runs it alone.
func (p point) id() string {
	side := "before"
	if p.After {
		side = "after"
	}
	return fmt.Sprintf("%d.%d.%s.%s", p.Delivery+1, p.N, side, p.Fault)
}

// String says where, and what happens there.
func (p point) String() string {
	what := map[string]string{
		resetFault: "the connection was reset", endFault: "the server's session was terminated",
		killFault:  "the process was killed",
		stopFault:  "the context ended",
		raceFault:  "it failed with a serialization failure (40001)",
		otherFault: "it failed with a unique violation (23505) of another constraint",
	}[p.Fault]
	if p.Fault == raceFault || p.Fault == otherFault {
		return fmt.Sprintf("at its write %d: %s", p.N, what)
	}
	if p.N == 0 {
		return "after the reply, before the acknowledgement: " + what
	}
	statement := fmt.Sprintf("statement %d (%s)", p.N, brief(p.SQL))
	if p.commit() {
		statement = "COMMIT"
	}
	if p.After {
		return fmt.Sprintf("after %s, before its reply: %s", statement, what)
	}
	return fmt.Sprintf("before %s: %s", statement, what)
}

func (p point) commit() bool {
	return faultconn.Commit(faultconn.Message{From: faultconn.Frontend, Type: "Query", SQL: p.SQL})
}

// fits returns what chooses the message: the statement by its text, for a process that has just begun may send others
// before it; or the server's word that it is done. The result is for one run.
func (p point) fits() func(faultconn.Message) bool {
	var mu sync.Mutex
	seen := 0
	pending := map[int][]bool{} // by connection: statements without an answer, and whether this is the one
	return func(m faultconn.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case faultconn.Statement(m):
			chosen := m.String() == p.Text
			if chosen {
				seen++
				chosen = seen == p.Nth
			}
			pending[m.Conn] = append(pending[m.Conn], chosen)
			return chosen && !p.After
		case m.Type == "ReadyForQuery":
			delete(pending, m.Conn)
		case completed(m) && len(pending[m.Conn]) > 0:
			chosen := pending[m.Conn][0]
			pending[m.Conn] = pending[m.Conn][1:]
			return chosen && p.After
		}
		return false
	}
}

// points lists where to cut, the cheap faults first: they also tell most.
func (l *lab[D]) points(b *baseline) (all []point) {
	seen := map[string]bool{}
	var chosen []int
	for i, trace := range b.traces {
		var shape string
		for _, m := range sent(trace) {
			shape += m.String() + "\x00"
		}
		if !seen[shape] {
			seen[shape] = true
			chosen = append(chosen, i)
		}
	}
	for _, fault := range []string{resetFault, stopFault, raceFault, otherFault, endFault, killFault} {
		for _, i := range chosen {
			if fault == otherFault || fault == raceFault {
				all = append(all, point{Delivery: i, N: 1, Fault: fault}) // and on, until there is no write any more
				continue
			}
			all = append(all, pointsOf(i, b.traces[i], fault)...)
		}
	}
	return all
}

func pointsOf(i int, trace []faultconn.Message, fault string) (all []point) {
	nth := map[string]int{}
	for n, m := range sent(trace) {
		text := m.String()
		nth[text]++
		p := point{Delivery: i, N: n + 1, SQL: m.SQL, Text: text, Nth: nth[text], Fault: fault}
		all = append(all, p)
		if fault != stopFault { // the handler has that to itself
			p.After = true
			all = append(all, p)
		}
	}
	if fault == killFault {
		all = append(all, point{Delivery: i, Fault: fault, After: true})
	}
	return all
}

func (l *lab[D]) crash() error {
	stages, b, err := l.stages()
	if err != nil {
		return err
	}
	all := l.points(b)
	only := onlyRound()
	var next, missed, made atomic.Int64
	var mu sync.Mutex
	var found []numbered
	err = inStages(stages, func(st *stage) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= len(all) {
				return nil
			}
			p := all[n]
			more := true
			for more {
				if p.Fault != otherFault && p.Fault != raceFault {
					more = false
				}
				if only == "" || only == p.id() {
					made.Add(1)
					hit, err := l.round(st, b, p)
					if err != nil {
						mu.Lock()
						found = append(found, numbered{n, err})
						mu.Unlock()
						next.Store(int64(len(all))) // the rest is not needed
						return nil
					}
					if !hit && more {
						made.Add(-1)
						break // there are no more writes
					}
					if !hit {
						missed.Add(1)
					}
				} else if p.N > maxWrites {
					break
				}
				p.N++
			}
		}
	})
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return slices.MinFunc(found, func(a, b numbered) int { return cmp.Compare(a.n, b.n) }).err
	}
	l.said = fmt.Sprintf(", %d rounds", made.Load())
	if n := missed.Load(); n > 0 {
		l.said += fmt.Sprintf("; in %d of them the handler never came to where it was to be cut", n)
	}
	return nil
}

// maxWrites bounds the search for a round that was asked for by its name.
const maxWrites = 1000

// numbered is what went wrong in a round.
type numbered struct {
	n   int
	err error
}

// round makes one delivery that is cut, and the ones after it that mend it. hit says whether the point was reached.
func (l *lab[D]) round(st *stage, b *baseline, p point) (hit bool, err error) {
	if err := st.reset(l.ctx); err != nil {
		return false, err
	}
	if err := l.lead(st, p.Delivery); err != nil {
		return false, err
	}
	r := result[D]{point: p, before: b.states[p.Delivery], want: b.states[p.Delivery+1]}
	probe, err := l.probe()
	if err != nil {
		return false, err
	}
	if hit, err = l.disturb(st, &r); err != nil {
		return hit, err
	}
	defer r.acting.close()
	if f := l.leftOpen(r.acting, p.Delivery, r.point.String()); f != nil {
		f.round = p.id()
		return hit, f
	}
	if r.mid, err = l.cat.take(l.ctx, st.pool); err != nil {
		return hit, err
	}
	r.acked = r.first == nil
	if r.acked {
		if d := diff(r.want, r.mid); len(d) > 0 { // nobody would deliver it again
			r.final = r.mid
			return hit, l.blame(st, &r, d)
		}
	}
	if err := l.redeliver(r.acting, l.Deliveries[p.Delivery]); err != nil {
		return hit, &finding{
			sentence: fmt.Sprintf("%s, %v; delivered again, it was never acknowledged any more: %v", l.name(p.Delivery), p, err),
			round:    p.id(), database: st.name,
		}
	}
	if err := st.settle(l.ctx); err != nil && !errors.Is(err, errOpen) {
		return hit, err
	}
	if r.final, err = l.cat.take(l.ctx, st.pool); err != nil {
		return hit, err
	}
	if d := diff(r.want, r.final); len(d) > 0 {
		return hit, l.blame(st, &r, d)
	}
	return hit, l.blameProbe(st, &r, b, probe)
}

// lead makes the deliveries before the one that is cut.
func (l *lab[D]) lead(st *stage, n int) error {
	if n == 0 {
		return nil
	}
	a, err := l.act(st, newWire(nil))
	if err != nil {
		return err
	}
	defer a.close()
	for _, d := range l.Deliveries[:n] {
		if err := l.redeliver(a, d); err != nil {
			return err
		}
	}
	return a.db.idle(l.Timeout)
}

// disturb makes the delivery that is cut.
func (l *lab[D]) disturb(st *stage, r *result[D]) (hit bool, err error) {
	p := r.point
	w := newWire(nil)
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	switch p.Fault {
	case stopFault:
		w = newCut(p.fits(), 1, faultconn.Pass, func(faultconn.Message) { cancel() })
	case killFault:
		if r.acting, err = l.act(st, w); err != nil {
			return false, err
		}
		r.first = errKilled
		return l.kill(st, p)
	case raceFault, otherFault:
		if err := st.armFailure(l.ctx, p.N, p.Fault); err != nil {
			return false, err
		}
	case resetFault:
		w = newCut(p.fits(), 1, faultconn.Reset, nil)
	case endFault:
		mode := faultconn.Pass // on to a session that has gone
		if p.After {
			mode = faultconn.DropBefore
		}
		w = newCut(p.fits(), 1, mode, func(m faultconn.Message) { _ = st.terminate(l.ctx, m.PID) })
	}
	if r.acting, err = l.act(st, w); err != nil {
		return false, err
	}
	r.first = l.deliver(ctx, r.acting, l.Deliveries[p.Delivery])
	r.steps = steps(w.script.Trace())
	if p.Fault == raceFault || p.Fault == otherFault {
		_ = r.acting.db.idle(l.Timeout) // the triggers are removed after the handler's transaction
		writes, err := st.disarm(l.ctx)
		return writes >= p.N, err
	}
	return w.script.Hits() > 0, nil
}

// errKilled stands for the error that a killed process does not return.
var errKilled = errors.New("the process was killed")
