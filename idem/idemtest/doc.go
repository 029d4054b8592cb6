// Package idemtest breaks a handler of messages in its own tests, before production does. It calls the handler as
// brokers and webhook senders do: twice, at once, out of order, and again after the connection, the server's session or
// the process was lost. Then it compares your tables with those after one clean delivery, row by row. You write no
// assertion.
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
// NewService takes a *pgxpool.Pool, and must use the one it is given: the kit does not watch a handler's own pool.
// Setup makes its tables, those of package dedup included. TestMain needs nothing; see [Child].
//
// How a handler avoids repeats does not matter: package idem, a table of your own, and nothing at all are tested alike.
// The kit does not see what is left in sequences, and what only many machines or much time bring about. It sees effects
// outside the database, a second one included, only if a Probe shows them.
//
// # Finding what you need
//
//   - The same delivery again: [Kit.DoubleSubmit]. Cut in the middle: [Kit.Crash]. Out of order: [Kit.Reorder]. All
//     of that at once, from many workers: [Kit.Concurrent].
//   - Keys: [Kit.Collide], and the constraint behind them: [Kit.Backed].
//   - Speed: [Kit.Load].
//   - Web servers: [HTTP]. Handlers behind an inbox: [Inbox]. Handlers on database/sql: [DB.SQL].
//   - What a handler puts into an outbox: [Kit.Events].
//   - Stores and fakes of your own: [Contract].
//
// # What is checked first
//
// Rounds are compared with an undisturbed run, which must show something. Every part fails at once if the deliveries
// sent no statement over the kit's connections, or changed no row and made no effect that the Probe shows; if a
// delivery wrote and never committed; and if one was taken for a duplicate of another, for both make one key. A single
// delivery that changes nothing is logged.
//
// # What a failure says
//
// Which delivery, cut where; which rows were lost, repeated or different; and the usual cause. Only the rows decide,
// not the handler's statements. The message ends with the command that makes the same round again, and the name of the
// database, which is kept.
package idemtest
