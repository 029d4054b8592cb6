package schema

import (
	"fmt"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Window reports a retention that is shorter than the time for which the sender delivers messages again. Its Fix is
// for the program, not for the database, and so a comment of SQL.
func Window(name pg.Name, retention, resends time.Duration) []Problem {
	if retention >= resends {
		return nil
	}
	v := verifier{table: name}
	v.report(shortRetention,
		fmt.Sprintf("keys are kept for %v, and the sender may deliver a message again for up to %v: what comes after its "+
			"key was purged runs again", retention, resends),
		"-- in the program: a Retention of at least %v, or ShortRetention: true where this is meant", resends)
	return v.problems
}
