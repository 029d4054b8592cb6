package dedup

import (
	"context"
	"time"
)

// Observer is told what became of each call. Turn an [Event] into your counters and histograms; no metrics package is
// needed here.
type Observer interface {
	// Observe is called once for each call, after it, in the caller's goroutine. It must be quick, must not panic, and
	// must be safe for concurrent use. ctx is the call's, and may be done.
	Observe(ctx context.Context, e Event)
}

// Outcome is what became of a call. Its values fit a metric's label.
type Outcome string

// What can become of a call of package idem, of a message of package inbox, and of a purge.
const (
	Executed        Outcome = "executed"         // the effect ran; with Do, it stands when the caller commits
	Duplicate       Outcome = "duplicate"        // the effect had run before
	InProgress      Outcome = "in_progress"      // another call holds the key
	PayloadMismatch Outcome = "payload_mismatch" // the key was used with another payload
	Expired         Outcome = "expired"          // the key's time lies before the retention window
	Unfinished      Outcome = "unfinished"       // a reservation ran out
	FinalFailure    Outcome = "final_failure"    // the key ended in a final failure, now or before
	LostLease       Outcome = "lost_lease"       // the attempt outlived its lease, and another one has taken the key over
	// an earlier attempt was interrupted, and the provider may have forgotten it: look there
	Unsettled Outcome = "unsettled"
	Unknown   Outcome = "unknown" // COMMIT was not answered, and the answer could not be found out
	// anything else: the effect's own error, the server's, a lost connection, a panic
	Failed Outcome = "failed"

	Stored     Outcome = "stored" // an inbox has stored a message
	DeadLetter Outcome = "dead"   // a message of an inbox had its last attempt

	Purged      Outcome = "purge"        // a purge, or Maintain, ended, or left the work to another one that was running
	PurgeFailed Outcome = "purge_failed" // a purge, or Maintain, ended early, by an error or the end of its context
)

// Event describes one call, or one purge (without Source and Operation). No field but Err can hold a key or a payload.
type Event struct {
	Table, Source, Operation string

	Outcome Outcome
	Code    string // the SQLSTATE, where the server gave one

	// Err is the error that the call returns, or one that says that fn has panicked. The library's own errors hold no
	// key and no payload; what fn's own holds, only fn knows.
	Err error

	// Stage is where in the call Err came, as in idem.Error.Stage; empty for fn's own error.
	Stage string

	// Waited is the time that claiming took, round trips included, so it is never 0. Nearly all of a long one is the
	// wait for another transaction that held the key.
	Waited time.Duration

	// Held is how long this call held the key, from the claim to the call's end; a concurrent duplicate waits at least
	// as long. With Do the caller's transaction holds it longer, until its end. Of a purge it is the time that it took.
	Held time.Duration

	// Rows is how many keys a purge has deleted.
	Rows int64

	// Age is, for a Duplicate and for a FinalFailure stored before, how long before this call the original was claimed,
	// by the server's clock. Its highest values size a retention; see [Ages].
	Age time.Duration
}
