package idemtest

import (
	"fmt"
	"strings"
)

// result is what became of a delivery that was cut.
type result[D any] struct {
	point  point
	acting *acting[D]

	first error  // what the handler returned
	acked bool   // nothing
	steps []step // what it sent; of a killed process nothing is known

	before, mid, final, want snapshot
}

// blame makes the message for tables that are not as they should be.
func (l *lab[D]) blame(st *stage, r *result[D], d []tableDiff) error {
	again := "; delivered again until it was acknowledged"
	if r.acked {
		again = "; the handler acknowledged it all the same"
	}
	return &finding{
		sentence: fmt.Sprintf("%s, %v%s: %s: %s", l.name(r.point.Delivery), r.point, again, summary(d), l.because(r, d)),
		rows:     lines(d), round: r.point.id(), database: st.name,
	}
}

// because names what the failure comes from.
func (l *lab[D]) because(r *result[D], d []tableDiff) string {
	if !r.acked && l.lostKey(l.base, r.point.Delivery) {
		return keyUndone
	}
	return r.misuse(d)
}

// misuse names what the failure comes from, as far as this round tells.
func (r *result[D]) misuse(d []tableDiff) string {
	left := diff(r.before, r.mid) // what was committed in spite of the cut
	switch {
	case r.acked && r.ranAgain() && len(left) > 0:
		return "fn keeps state from a rolled-back first attempt: it ran twice in this delivery, and what it kept outside of " +
			"the transaction counted twice; set such variables at the start of fn"
	case r.acked && r.point.Fault == stopFault:
		return "acknowledged at shutdown: the context ended before the work was committed, and the handler returned nil; " +
			"return the context's error"
	case r.acked && r.point.Fault == otherFault:
		return "23505 swallowed without a constraint name: any unique violation is taken for a duplicate; " +
			"ask for the one constraint that backs the key (pgerr.Duplicate)"
	case r.acked && (r.point.Fault == raceFault || !r.point.commit()):
		return "swallowed SQL error: a statement failed and the handler went on as if it had not; return every error"
	case r.acked:
		return "acknowledged before commit: the handler returned nil although COMMIT was not confirmed; acknowledge after " +
			"it only"
	}
	if acted := len(diff(r.mid, r.final)) > 0; !acted {
		if len(left) == 0 {
			return "marked outside of the database: nothing was committed, and still the handler took the next delivery for a " +
				"duplicate"
		}
		return fmt.Sprintf("marker committed before the work: what marks the delivery as done (%s) was there, and the next "+
			"delivery "+
			"was taken for a duplicate; commit both in one transaction", tables(left))
	}
	switch {
	case len(left) > 0 && r.otherConnection() != "":
		return fmt.Sprintf("write on another connection than tx: %s was written outside of the transaction, and stays when "+
			"that is rolled "+
			"back; use the tx that fn is given for everything", r.otherConnection())
	case len(left) > 0:
		return fmt.Sprintf("work committed before its marker: %s was committed on its own, and made again by the next "+
			"delivery; "+
			"commit both in one transaction", tables(left))
	}
	for _, t := range d {
		if t.table.dedup {
			return keyOf
		}
	}
	return "the next delivery made something else than the first one would have"
}

// ranAgain says whether the handler began anew within one delivery: a statement is there in two transactions.
func (r *result[D]) ranAgain() bool {
	first := map[string]int{}
	for _, s := range r.steps {
		if s.sql == "" || !mayWrite(s.sql) {
			continue
		}
		if tx, ok := first[s.sql]; ok && tx != s.tx {
			return true
		}
		first[s.sql] = s.tx
	}
	return false
}

// otherConnection returns the tables that were written and committed on one connection while another one was in a
// transaction that did not commit.
func (r *result[D]) otherConnection() string {
	lost := map[int]bool{} // connections
	var names []string
	for _, s := range r.steps {
		if s.end != "COMMIT" {
			lost[s.conn] = true
			continue
		}
		for conn := range lost {
			if conn != s.conn && s.wrote() {
				names = append(names, target(s.sql))
				break
			}
		}
	}
	return strings.Join(names, ", ")
}

// tables names the tables of a difference.
func tables(all []tableDiff) string {
	var names []string
	for _, d := range all {
		names = append(names, d.table.String())
	}
	return strings.Join(names, ", ")
}

// blameProbe compares the effects elsewhere.
func (l *lab[D]) blameProbe(st *stage, r *result[D], b *baseline, before []string) error {
	if l.Probe == nil || r.point.Fault == killFault {
		return nil
	}
	after, err := l.probe()
	if err != nil {
		return err
	}
	got := since(before, after)
	sentence, rows := probeDiff(b.probes[r.point.Delivery], got)
	if sentence == "" {
		return nil
	}
	why := "mail sent inside fn: an effect outside of the database is not rolled back with the transaction, and made " +
		"again with it; " +
		"write a row in fn (an outbox), and send from there"
	if len(got) < len(b.probes[r.point.Delivery]) {
		why = "sent after the commit: a process that ends between the two never sends; write a row in fn (an outbox), and " +
			"send from there"
	}
	return &finding{
		sentence: fmt.Sprintf("%s, %v; delivered again until it was acknowledged: %s: %s", l.name(r.point.Delivery), r.point,
			sentence, why),
		rows: rows, round: r.point.id(), database: st.name,
	}
}

// target names the table that a statement writes to.
func target(sql string) string {
	if m := writeTarget.FindStringSubmatch(sql); m != nil {
		return m[1]
	}
	return "a table"
}
