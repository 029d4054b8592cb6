package idemtest

import (
	"strings"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// The misuse that a failure comes from, a sentence each. What happened to the rows decides whether a handler fails; the
// trace of its statements only decides which of these it is told.
const (
	noKey = "no key: nothing recognises the second delivery; claim a key that comes from the delivery alone, in the " +
		"transaction of the effect"
	keyOf = "time or random part in the key: the second delivery has another key than the first; make it of the " +
		"sender's id alone"
	other = "a first delivery is not like the one before: the handler takes something from elsewhere than the delivery " +
		"and the database; " +
		"a column that may differ so from run to run belongs into Kit.Ignore"
	check = "check-then-insert: each delivery looked before any had written, found nothing, and wrote; " +
		"let a unique constraint decide (INSERT ... ON CONFLICT, as idem.Do does)"
	keyUndone = "the effect is there and no key is: the key was claimed, and rolled back (ROLLBACK TO) to a savepoint " +
		"that was set before the claim; " +
		"in fn, roll back to savepoints of fn's own only"
	race = "no constraint: the deliveries ran into each other; what decides must be a unique constraint, and in the " +
		"transaction of the effect"
)

// misuseOfRepeat names what let a second delivery through. changed is what it did.
func misuseOfRepeat(changed []tableDiff) string {
	for _, d := range changed {
		if d.table.dedup && d.repeated() > 0 {
			return keyOf
		}
	}
	return noKey
}

// misuseOfRace names what let several deliveries through at once.
func misuseOfRace(trace []faultconn.Message) string {
	looked := map[int]bool{} // connections
	for _, s := range steps(trace) {
		switch {
		case strings.HasPrefix(s.tag, "SELECT") && !mayWrite(s.sql):
			looked[s.conn] = true
		case s.wrote() && looked[s.conn]:
			return check
		}
	}
	return race
}
