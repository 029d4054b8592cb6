package idemtest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

const (
	allOrders    = 6   // so many deliveries are made in every order
	sampleOrders = 200 // of more, so many orders are tried
)

// Reorder makes the deliveries in every order (of more than 6: in 200 orders, chosen by the Seed), with duplicates
// mixed in. It fails unless all orders end in the state of the given order. What a handler cannot take yet (an error)
// is delivered again after the others.
//
// Leave out events that no order can be right for, such as two sums that overwrite each other.
func (k Kit[D]) Reorder(t TB) {
	t.Helper()
	run(t, k, part[D]{"Reorder", (*lab[D]).reorder})
}

func (l *lab[D]) reorder() error {
	stages, b, err := l.stages()
	if err != nil {
		return err
	}
	orders := l.orders()
	l.said = fmt.Sprintf(", %d orders", len(orders))
	only := onlyRound()
	var next atomic.Int64
	return inStages(stages, func(st *stage) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= len(orders) {
				return nil
			}
			if only != "" && only != strconv.Itoa(n) {
				continue
			}
			if err := l.inOrder(st, b, n, orders[n]); err != nil {
				return err
			}
		}
	})
}

// orders lists the orders to try, with duplicates.
func (l *lab[D]) orders() (all [][]int) {
	n := len(l.Deliveries)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	if n <= allOrders {
		permute(order, 0, func(p []int) { all = append(all, slices.Clone(p)) })
	} else {
		for range sampleOrders {
			l.rand.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
			all = append(all, slices.Clone(order))
		}
	}
	for i, o := range all {
		all[i] = mixIn(o, l.rand)
	}
	return all
}

func permute(p []int, from int, each func([]int)) {
	if from == len(p) {
		each(p)
		return
	}
	for i := from; i < len(p); i++ {
		p[from], p[i] = p[i], p[from]
		permute(p, from+1, each)
		p[from], p[i] = p[i], p[from]
	}
}

// mixIn repeats some deliveries later on: a duplicate never comes before its original.
func mixIn(order []int, r *rand.Rand) []int {
	mixed := slices.Clone(order)
	for range 1 + len(order)/2 {
		from := r.IntN(len(mixed))
		mixed = slices.Insert(mixed, from+1+r.IntN(len(mixed)-from), mixed[from])
	}
	return mixed
}

// inOrder makes the deliveries in one order.
func (l *lab[D]) inOrder(st *stage, b *baseline, n int, order []int) error {
	if err := st.reset(l.ctx); err != nil {
		return err
	}
	w := newWire(nil)
	a, err := l.act(st, w)
	if err != nil {
		return err
	}
	defer a.close()
	waiting := order
	for len(waiting) > 0 {
		var failed []int
		var last error
		for _, i := range waiting {
			if err := l.deliver(l.ctx, a, l.Deliveries[i]); err != nil {
				failed, last = append(failed, i), err
			}
		}
		if len(failed) == len(waiting) {
			return &finding{
				sentence: fmt.Sprintf("in the order %s %s is refused, even after all the others: %v", numbers(order),
					l.name(failed[0]), last),
				round: strconv.Itoa(n), database: st.name,
			}
		}
		waiting = failed
	}
	if err := st.settle(l.ctx); err != nil {
		return err
	}
	got, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return err
	}
	if d := diff(b.states[len(l.Deliveries)], got); len(d) > 0 {
		return &finding{
			sentence: fmt.Sprintf("the deliveries in the order %s end in another state than in the order they are given in: %s: %s",
				numbers(order), summary(d), misuseOfOrder(d, w.script.Trace())),
			rows: lines(d), round: strconv.Itoa(n), database: st.name,
		}
	}
	return nil
}

// numbers writes an order as people count: "2 1 2".
func numbers(order []int) string {
	var parts []string
	for _, i := range order {
		parts = append(parts, strconv.Itoa(i+1))
	}
	return strings.Join(parts, " ")
}

// misuseOfOrder names what makes the end depend on the order.
func misuseOfOrder(d []tableDiff, trace []faultconn.Message) string {
	for _, s := range steps(trace) {
		sql := strings.ToLower(s.sql)
		_, update, found := strings.Cut(sql, "do update")
		if found && s.wrote() && !strings.Contains(update, "where") {
			return "unguarded upsert: an older event overwrote a newer one; compare a version in DO UPDATE ... WHERE, as " +
				"package upsert does"
		}
	}
	for _, t := range d {
		if t.lost() == t.repeated() {
			return "an older event overwrote a newer one: write only where the event's version is newer"
		}
	}
	return "the effect of an event depends on the ones before it"
}

// stage returns the first stage, as it was before the first delivery, with the baseline.
func (l *lab[D]) stage() (*stage, *baseline, error) {
	if l.base != nil {
		return l.all[0], l.base, l.all[0].reset(l.ctx)
	}
	if err := l.prepare(); err != nil {
		return nil, nil, fmt.Errorf("prepare the database: %w", err)
	}
	st, err := newStage(l.ctx, l.srv, l.cat, l.original)
	if err != nil {
		return nil, nil, err
	}
	l.all = []*stage{st}
	l.base, err = l.makeBase(st)
	return st, l.base, err
}

// stages returns the stages for rounds that run at once, in whatever state. With a Probe there is one.
func (l *lab[D]) stages() ([]*stage, *baseline, error) {
	if _, _, err := l.stage(); err != nil {
		return nil, nil, err
	}
	for l.Probe == nil && len(l.all) < min(maxStages, runtime.GOMAXPROCS(0)) {
		st, err := newStage(l.ctx, l.srv, l.cat, l.original)
		if err != nil {
			return nil, nil, err
		}
		l.all = append(l.all, st)
	}
	return l.all, l.base, nil
}

// maxStages is how many rounds run at once, at most: one a core.
const maxStages = 4

// inStages runs work in every stage, and returns the first error.
func inStages(stages []*stage, work func(*stage) error) error {
	errs := make([]error, len(stages))
	var wg sync.WaitGroup
	for i, st := range stages {
		wg.Go(func() { errs[i] = work(st) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
