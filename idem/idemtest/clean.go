package idemtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// baseline is what the deliveries do when each is made once, in order, and nothing is in the way.
type baseline struct {
	states []snapshot              // states[i] is before delivery i, states[i+1] after it
	traces [][]faultconn.Message   // of delivery i
	probes []map[string]int        // what delivery i added elsewhere
	prints []map[*userTable]string // as states, of all rows and columns
	keys   []map[keyValue]int      // the keys that delivery i added
	again  []map[keyValue]int      // those that it added when all was made once more
}

// makeBase makes the baseline, in a stage that was reset. It is made twice: what differs then cannot be compared later.
func (l *lab[D]) makeBase(st *stage) (*baseline, error) {
	first, err := l.cleanRun(st)
	if err != nil {
		return nil, err
	}
	if err := st.reset(l.ctx); err != nil {
		return nil, err
	}
	// Or two runs would agree on a time of which a handler keeps the seconds only.
	select {
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	case <-time.After(time.Second):
	}
	// In a round with a fault, sequences lose values to transactions that are rolled back.
	if err := st.skipSequences(l.ctx, 1000); err != nil {
		return nil, err
	}
	second, err := l.cleanRun(st)
	if err != nil {
		return nil, err
	}
	for i := range first.states {
		columns, names := unstableColumns(first.states[i].without(), second.states[i].without())
		for _, c := range columns {
			c.volatile = true
		}
		if len(names) > 0 {
			l.t.Logf("idemtest: %s: not compared, for it differs between two runs that nothing disturbed: %s", l.call,
				strings.Join(names, ", "))
		}
	}
	for i := range first.states {
		first.states[i] = first.states[i].without()
		if d := diff(first.states[i], second.states[i].without()); len(d) > 0 {
			return nil, &finding{
				sentence: fmt.Sprintf("two runs of %s that nothing disturbed end differently (%s): the handler takes something "+
					"from elsewhere than the delivery and the database",
					l.upTo(i), summary(d)),
				rows: lines(d), database: st.name,
			}
		}
	}
	// Some statements are sent only once by a process, the first time.
	first.traces, first.again = second.traces, second.keys
	if err := l.prove(st, first); err != nil {
		return nil, err
	}
	return first, st.reset(l.ctx)
}

// upTo names the first n deliveries.
func (l *lab[D]) upTo(n int) string {
	if n == 1 {
		return "the first delivery"
	}
	return fmt.Sprintf("the first %d deliveries", n)
}

func (l *lab[D]) cleanRun(st *stage) (*baseline, error) {
	b := &baseline{}
	state, err := l.cat.take(l.ctx, st.pool)
	if err != nil {
		return nil, err
	}
	b.states = append(b.states, state)
	prints, err := st.prints(l.ctx)
	if err != nil {
		return nil, err
	}
	b.prints = append(b.prints, prints)
	keys, err := l.keyValues(st)
	if err != nil {
		return nil, err
	}
	for i := range l.Deliveries {
		before, err := l.probe()
		if err != nil {
			return nil, err
		}
		trace, err := l.cleanDelivery(st, i)
		if err != nil {
			return nil, err
		}
		after, err := l.probe()
		if err != nil {
			return nil, err
		}
		if state, err = l.cat.take(l.ctx, st.pool); err != nil {
			return nil, err
		}
		if prints, err = st.prints(l.ctx); err != nil {
			return nil, err
		}
		now, err := l.keyValues(st)
		if err != nil {
			return nil, err
		}
		b.states = append(b.states, state)
		b.prints = append(b.prints, prints)
		b.keys, keys = append(b.keys, surplus(keys, now)), now
		b.traces = append(b.traces, trace)
		b.probes = append(b.probes, since(before, after))
	}
	return b, nil
}

// cleanDelivery makes delivery i once, with connections of its own.
func (l *lab[D]) cleanDelivery(st *stage, i int) ([]faultconn.Message, error) {
	w := newWire(nil)
	a, err := l.act(st, w)
	if err != nil {
		return nil, err
	}
	defer a.close()
	if err := l.deliver(l.ctx, a, l.Deliveries[i]); err != nil {
		return nil, &finding{
			sentence: fmt.Sprintf("%s failed, though it was the first and nothing was in its way: %v", l.name(i), err),
			database: st.name,
		}
	}
	done := committed(w.script.Trace())
	if done == 0 {
		time.Sleep(grace)
	}
	if f := l.leftOpen(a, i, "with nothing in its way"); f != nil {
		return nil, f
	}
	trace := w.script.Trace()
	if n := committed(trace) - done; n > 0 {
		return nil, &finding{
			sentence: fmt.Sprintf("%s, with nothing in its way: acknowledged before commit: %d of its writes were committed "+
				"only after the "+
				"handler had returned nil, and are lost where the process ends in between; acknowledge after COMMIT", l.name(i), n),
			database: st.name,
		}
	}
	return trace, nil
}

// grace is how long work may take to begin that a handler leaves to another goroutine, where it has written nothing
// itself.
const grace = 250 * time.Millisecond

// committed counts the writes that were committed.
func committed(trace []faultconn.Message) (n int) {
	for _, s := range steps(trace) {
		if s.wrote() && s.end == "COMMIT" {
			n++
		}
	}
	return n
}

// leftOpen finds a transaction or a connection that a delivery did not give back.
func (l *lab[D]) leftOpen(a *acting[D], i int, point string) *finding {
	leaked := a.db.idle(3 * time.Second)
	if leaked == nil {
		leaked = a.st.settle(l.ctx)
	}
	if leaked == nil || !errors.Is(leaked, errLeaked) && !errors.Is(leaked, errOpen) {
		return nil
	}
	return &finding{
		sentence: fmt.Sprintf("%s, %s: leaked transaction: the handler returned and left a transaction or a connection open, "+
			"which keeps its locks and is missing in the pool; end it on every path (defer tx.Rollback)", l.name(i), point),
		database: a.st.name,
	}
}

// name says which delivery i is.
func (l *lab[D]) name(i int) string {
	return fmt.Sprintf("delivery %d of %d, %s", i+1, len(l.Deliveries), cut(fmt.Sprintf("%+v", l.Deliveries[i]), 80))
}

// skipSequences moves the user's sequences on by n steps, but no more than half the way to their end.
func (st *stage) skipSequences(ctx context.Context, n int) error {
	b := &pgx.Batch{}
	for _, name := range st.cat.sequences {
		b.Queue(fmt.Sprintf(skipSequence, name), name, n)
	}
	if b.Len() == 0 {
		return nil
	}
	return st.pool.SendBatch(ctx, b).Close()
}

const skipSequence = `
SELECT setval(s.seqrelid::regclass, (v.last_value + trunc(CASE WHEN s.seqincrement > 0
	THEN least(s.seqincrement * $2::numeric, (s.seqmax - v.last_value::numeric) / 2)
	ELSE greatest(s.seqincrement * $2::numeric, (s.seqmin - v.last_value::numeric) / 2) END))::bigint)
FROM %s v, pg_sequence s
WHERE s.seqrelid = $1::text::regclass`

// probeDiff says how the effects elsewhere differ from what they should be, or "".
func probeDiff(want, got map[string]int) (sentence, rows string) {
	var parts []string
	keys := slices.Sorted(maps.Keys(want))
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		if want[k] == got[k] {
			continue
		}
		parts = append(parts, fmt.Sprintf("%d times instead of %d", got[k], want[k]))
		rows += fmt.Sprintf("\n\t%s %s: %d times instead of %d", map[bool]string{true: "+", false: "-"}[got[k] > want[k]],
			cut(k, maxRow), got[k], want[k])
	}
	if len(parts) == 0 {
		return "", ""
	}
	return "an effect outside of the database was made " + parts[0], rows
}
