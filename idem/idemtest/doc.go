// Package idemtest breaks a handler of messages in its own tests, before production does. It calls the handler as brokers
// and webhook senders do: twice, at once, out of order, and again after the connection, the server's session or the
// process was lost in the middle. Then it compares your tables with those after one clean delivery, row by row.
//
// You write no assertion. What the kit does not see is what a handler does outside of the database, a second database
// included, unless a Probe shows it; what it leaves in sequences; and what only many machines or much time bring about. It
// knows nothing of how a handler keeps itself from repeating an effect: package idem, a table of your own, and nothing at
// all are tested alike.
//
// # Basic use
//
//	func TestHandler(t *testing.T) {
//		idemtest.Kit[Event]{
//			DSN:   os.Getenv("TEST_DATABASE_URL"), // copied, not written to
//			Setup: migrate,
//			Handler: func(db *idemtest.DB) func(context.Context, Event) error {
//				return NewService(db.Pool()).Handle
//			},
//			Deliveries: []Event{created, paid},
//		}.All(t)
//	}
//
// Here NewService takes a *pgxpool.Pool, and has to use the one it is given: a handler on a pool of its own is not watched, and
// writes to another database. Setup makes its tables, those of package dedup included.
//
// In TestMain nothing is needed. [Kit.Crash] runs the test binary again to kill it, up to the same call; tests that start
// a server or a container first ask [Child] whether they have to.
//
// # Finding what you need
//
//   - The same delivery again: [Kit.DoubleSubmit]. Cut in the middle: [Kit.Crash]. Out of order: [Kit.Reorder]. All of that
//     at once, from many workers: [Kit.Concurrent].
//   - Keys: [Kit.Collide], and the constraint behind them: [Kit.Backed].
//   - Speed: [Kit.Load].
//   - Web servers: [HTTP]. Handlers behind an inbox: [Inbox]. Handlers on database/sql: [DB.SQL].
//   - What a handler puts into an outbox: [Kit.Events].
//   - Stores and fakes of your own: [Contract].
//
// # What is checked first
//
// Rounds are compared with a run that nothing disturbed, so that one has to show something. Every part fails at once
// where the deliveries sent no statement over the kit's connections, or changed no row and made no effect that the
// Probe shows; where a delivery wrote and never committed; and where one was taken for a duplicate of another, for
// both make one key. A single delivery that changes nothing is logged.
//
// # What a failure says
//
// Which delivery, cut where; which rows were lost, repeated or different; and what such a failure usually comes from, by its
// name. The rows alone decide: a handler that ends right is right, whatever its statements look like. The message ends
// with the command that makes the same round again, and the name of the database, which is kept.
package idemtest
