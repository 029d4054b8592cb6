package idemtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// prove checks that the baseline shows something: rounds are compared with it, and a handler that did nothing, or
// took two events for one, would be the same in every round. It leaves the stage in some state.
func (l *lab[D]) prove(st *stage, b *baseline) error {
	idle := 0
	for i := range l.Deliveries {
		if !b.changed(i) {
			idle++
		}
	}
	sentNothing := !slices.ContainsFunc(b.traces, func(trace []faultconn.Message) bool { return len(sent(trace)) > 0 })
	switch {
	case sentNothing:
		return &finding{
			sentence: "the handler acknowledged each delivery, and sent no statement over the connections that Kit.Handler " +
				"was given: " +
				"it does nothing, or works on a pool of its own, which the kit can neither watch nor cut; take DB.Pool or DB.SQL " +
				"for everything",
			database: st.name,
		}
	case idle == len(l.Deliveries):
		return &finding{sentence: l.nothing(st, b), database: st.name}
	}
	for i := range l.Deliveries {
		if b.changed(i) && !b.keyless(i) {
			continue
		}
		if err := l.taken(st, b, i); err != nil {
			return err
		}
		if b.changed(i) {
			continue
		}
		if undone(b.traces[i]) {
			return &finding{sentence: fmt.Sprintf("%s, with nothing in its way: %s", l.name(i), uncommitted), database: st.name}
		}
		l.t.Logf("idemtest: %s: %s changed no row: nothing is shown about it", l.call, l.name(i))
	}
	return nil
}

const uncommitted = "never commits: what it wrote was rolled back, and the handler returned nil; commit, and return " +
	"the error of COMMIT"

// nothing says why no delivery changed anything.
func (l *lab[D]) nothing(st *stage, b *baseline) string {
	if slices.ContainsFunc(b.traces, undone) {
		return fmt.Sprintf("%s, with nothing in its way: %s", l.name(slices.IndexFunc(b.traces, undone)), uncommitted)
	}
	of, why := "", "it only looks, or writes to another database"
	if len(l.Tables) > 0 {
		of, why = " of the tables in Kit.Tables", "name the tables that it writes to"
	}
	return fmt.Sprintf("the handler acknowledged each delivery, and changed no row%s: %s", of, why)
}

// undone says whether a delivery wrote, and nothing of it was committed.
func undone(trace []faultconn.Message) bool {
	return committed(trace) == 0 && slices.ContainsFunc(steps(trace), step.wrote)
}

// changed says whether delivery i changed a compared table, or made an effect elsewhere.
func (b *baseline) changed(i int) bool {
	for t, print := range b.prints[i+1] {
		if t.compared && print != b.prints[i][t] {
			return true
		}
	}
	return len(b.probes[i]) > 0
}

// keyless says whether delivery i added no row to the tables of the keys, where another one did.
func (b *baseline) keyless(i int) bool {
	return len(b.keys[i]) == 0 && slices.ContainsFunc(b.keys, func(keys map[keyValue]int) bool { return len(keys) > 0 })
}

// taken finds the earlier delivery that the handler took delivery i for.
func (l *lab[D]) taken(st *stage, b *baseline, i int) error {
	own, ok, err := l.alone(st, i)
	if err != nil || !ok || len(own.keys) == 0 && len(diff(b.states[0], own.state)) == 0 {
		return err
	}
	for j := range i {
		other, ok, err := l.alone(st, j)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		what, of := shared(own, other, b.states[0])
		if what == "" {
			continue
		}
		after, ok, err := l.alone(st, j, i)
		if err != nil {
			return err
		}
		// Where the row of the key is another one afterwards, as after an upsert, the second delivery was done.
		done := func(d tableDiff) bool { return of == nil || d.table == of }
		if ok && len(after.keys) == 0 && !slices.ContainsFunc(diff(other.state, after.state), done) {
			return &finding{
				sentence: fmt.Sprintf("%s, was taken for a duplicate of delivery %d: both %s, so that the second of them is "+
					"never done; "+
					"make the key of all that tells two events apart (Collide audits the functions in Kit.Keys), and give "+
					"deliveries of different ids",
					l.name(i), j+1, what),
				database: st.name,
			}
		}
	}
	return nil
}

// lone is what a delivery does on its own.
type lone struct {
	state snapshot
	keys  map[keyValue]int // that the last delivery added
}

// alone makes deliveries from the beginning, with connections of their own. ok says whether all were acknowledged.
func (l *lab[D]) alone(st *stage, deliveries ...int) (got lone, ok bool, err error) {
	if err := st.reset(l.ctx); err != nil {
		return got, false, err
	}
	a, err := l.act(st, newWire(nil))
	if err != nil {
		return got, false, err
	}
	defer a.close()
	for n, i := range deliveries {
		// Each run draws other values, so that no two of them are the same by chance.
		if err := st.skipSequences(l.ctx, 1000*(i+1)); err != nil {
			return got, false, err
		}
		before, err := l.keyValues(st)
		if err != nil {
			return got, false, err
		}
		if l.deliver(l.ctx, a, l.Deliveries[i]) != nil {
			return got, false, nil
		}
		if n < len(deliveries)-1 {
			continue
		}
		after, err := l.keyValues(st)
		if err != nil {
			return got, false, err
		}
		got.keys = surplus(before, after)
	}
	got.state, err = l.cat.take(l.ctx, st.pool)
	return got, true, err
}

// shared says what two deliveries, each on its own, both write: a key; or a row of another table, where the effects
// differ (where they do not, the state is there already, and the second delivery has nothing to do). key is the table
// of a key.
func shared(a, b lone, start snapshot) (what string, key *userTable) {
	for _, v := range slices.SortedFunc(maps.Keys(a.keys),
		func(a, b keyValue) int { return strings.Compare(a.value, b.value) }) {
		if b.keys[v] > 0 {
			return fmt.Sprintf("make the key %s of %v", cut(v.value, maxRow), v.table), v.table
		}
	}
	if len(a.keys)+len(b.keys) > 0 || len(diff(a.state, b.state)) == 0 {
		return "", nil
	}
	others := diff(start, b.state)
	for _, d := range diff(start, a.state) {
		for _, o := range others {
			if o.table != d.table {
				continue
			}
			for _, row := range slices.Sorted(maps.Keys(d.more)) {
				if o.more[row] > 0 {
					return fmt.Sprintf("write the row %s of %v", cut(row, maxRow), d.table), nil
				}
			}
		}
	}
	return "", nil
}

// keyValue is what a row has in the columns of a constraint that is to back keys.
type keyValue struct {
	table      *userTable
	constraint string // as in a guard
	value      string
}

// keyValues returns the keys that are there.
func (l *lab[D]) keyValues(st *stage) (map[keyValue]int, error) {
	all := map[keyValue]int{}
	for _, t := range l.cat.tables {
		if !t.dedup || !t.hasKey() { // else Backed says so
			continue
		}
		if err := st.addValues(l.ctx, all, guard{table: t, columns: t.columnList(isKey)}); err != nil {
			return nil, err
		}
	}
	for _, name := range l.Constraints {
		g, problem, err := st.constraint(l.ctx, name)
		if err != nil {
			return nil, err
		}
		if problem == "" { // else Backed says so
			if err := st.addValues(l.ctx, all, g); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// addValues counts the values of a guard's columns.
func (st *stage) addValues(ctx context.Context, all map[keyValue]int, g guard) error {
	rows, err := st.pool.Query(ctx, `SELECT ROW(`+g.columns+`)::text FROM `+g.table.sql())
	if err != nil {
		return err
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, v := range values {
		all[keyValue{g.table, g.constraint, v}]++
	}
	return err
}

// surplus returns what there is more of in after.
func surplus(before, after map[keyValue]int) map[keyValue]int {
	more := map[keyValue]int{}
	for v, n := range after {
		if n > before[v] {
			more[v] = n - before[v]
		}
	}
	return more
}

// lostKey says whether delivery i claimed a key that is not there, though other rows that it wrote are.
func (l *lab[D]) lostKey(b *baseline, i int) bool {
	if len(b.keys[i]) > 0 || !b.changed(i) {
		return false
	}
	claimed := false
	for _, s := range steps(b.traces[i]) {
		name, err := pg.ParseName(target(s.sql))
		if err != nil || s.end != "COMMIT" || !s.wrote() {
			continue
		}
		if t := l.cat.named(name); t != nil && t.dedup {
			// A key that was deleted has been given up on purpose.
			claimed = strings.HasPrefix(s.tag, "INSERT") || claimed && !strings.HasPrefix(s.tag, "DELETE")
		}
	}
	return claimed
}

// raced names what let several of many deliveries through.
func (l *lab[D]) raced(b *baseline) string {
	for i := range l.Deliveries {
		if l.lostKey(b, i) {
			return keyUndone
		}
	}
	return race
}
