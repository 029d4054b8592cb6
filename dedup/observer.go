package dedup

import (
	"context"
	"time"
)

// Observer is told what became of each call. The library depends on no metrics package: write the few lines that turn an
// [Event] into your counters and histograms.
type Observer interface {
	// Observe is called once for each call, after it, in the caller's goroutine, and possibly by many at once: it must
	// be quick, must not panic, and must be safe for concurrent use. ctx is the call's, and may be done.
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
	Unsettled       Outcome = "unsettled"        // an earlier attempt was interrupted, and the provider may have forgotten it: look there
	Unknown         Outcome = "unknown"          // COMMIT was not answered, and the answer could not be found out
	Failed          Outcome = "failed"           // anything else: the effect's own error, the server's, a lost connection, a panic

	Stored     Outcome = "stored" // an inbox has stored a message
	DeadLetter Outcome = "dead"   // a message of an inbox had its last attempt

	Purged      Outcome = "purge"        // a purge, or Maintain, ended, or left the work to another one that was running
	PurgeFailed Outcome = "purge_failed" // a purge, or Maintain, ended early, by an error or the end of its context
)

// Event describes one call, or one purge, which has no Source and no Operation. No field but Err can
// hold a key or a payload.
type Event struct {
	Table, Source, Operation string

	Outcome Outcome
	Code    string // the SQLSTATE, where the server gave one

	// Err is the error that the call returns, or one that says that fn has panicked. None of the library's own holds a
	// key or a payload; what fn's own holds, only fn knows.
	Err error

	// Stage is where in the call Err came, as idem.Error.Stage says it; empty for an error of fn's.
	Stage string

	// Waited is the time that claiming took, nearly all of it the wait for another transaction that held the key. The
	// round trips of the claim are in it, so it is never 0.
	Waited time.Duration

	// Held is how long this call held the key, from the claim to the end of the call: the time that a concurrent
	// duplicate waits at least. With Do the caller holds it for longer, until the transaction ends. Of a purge it is the
	// time that it took.
	Held time.Duration

	// Rows is, for a purge, how many keys it has deleted.
	Rows int64

	// Age is, for a Duplicate, and for a FinalFailure that was stored before, how long before this call the original was
	// claimed, by the server's clock. Its highest values say how long a retention the sender needs; see [Ages]. (One that is
	// Expired came later than that.)
	Age time.Duration
}
