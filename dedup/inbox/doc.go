// Package inbox stores each message once, so that it can be acknowledged at once, and has it handled afterwards: the
// handler's writes and the completion are committed together.
//
// [Store] puts the raw message into a table whose primary key is (message id, operation, source). A message that comes
// again is a [Duplicate], whatever has become of the first. A [Worker] then calls your [Handler] with the message, in a
// transaction of its own. What the handler writes there stands if and only if the message is marked as handled. What
// inbox does not promise is anything outside of that transaction: a mail that the handler sends is sent again when the
// attempt has to be made again.
//
// # Basic use
//
//	out, err := inbox.Store(ctx, pool, inbox.Message{Source: "stripe", Operation: "webhook", ID: event, Body: body})
//	if err != nil {
//		return err // do not acknowledge: the message must come again
//	}
//	// stored or duplicate: acknowledge both
//
// and in every process, or in some:
//
//	err := inbox.Worker{Workers: 4}.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
//		_, err := tx.Exec(ctx, `UPDATE subscriptions SET active = true WHERE id = $1`, string(m.Body))
//		return err
//	})
//
// The table is made by [Migrate], and checked by [Verify].
//
// # Finding what you need
//
//   - Storing: [Store], [Table.Store], [Message], [Outcome].
//   - Handling: [Worker.Run] for ever, [Worker.Drain] once; [Handler], [ErrFinal].
//   - Waking a worker: [Notify], [Listen], [Worker].Wake.
//   - With database/sql: package inboxsql, below this one.
//   - Looking after it: [Table.Depth], [Table.List], [Table.Replay], [Table.Discard], [Table.Purge].
//
// # States
//
//	        Store            nil            Purge
//	no row -------> waiting ------> handled ------> no row
//	                |  ^ ^             |               ^
//	         failed |  | +-- Replay ---+               |
//	                +--+ |                             |
//	                |    +-- Replay ---+               |
//	                |                  |               |
//	                +---------------> dead             |
//	        the last attempt           | Discard       | Purge
//	                                   v               |
//	                               discarded ----------+
//
// Replay takes what is discarded to waiting, too.
//
//	from                      to         by               on condition that
//	no row                    waiting    Store            the name is new
//	waiting                   handled    a worker         the handler returned nil, in the same COMMIT
//	waiting                   waiting    a worker         an attempt failed, and there are more
//	waiting                   dead       a worker         an attempt failed: the last one, or with ErrFinal, or by misuse
//	dead                      discarded  Discard          -
//	dead, handled, discarded  waiting    Replay           its body is still there
//	handled, discarded        no row     Purge            it was finished longer ago than Keep
//
// What waits and what is dead is never purged, however old. A dead message is replayed or discarded by somebody.
//
// # What fails
//
// A failed attempt is rolled back with all that the handler wrote, and its number and the class of its error are kept.
// The message is tried again after MinRetry, then after twice as long each time, up to MaxRetry. After MaxAttempts it
// is dead. The attempt is counted and committed before the handler runs. So a message that kills its process reaches
// the same end, each attempt being noticed some time after the Lease is over, with the class "crash". Others that were
// being handled in that process have an attempt counted, too. A handler that fails later than the Lease has failed as
// any other: nobody takes its message before it had the time to write that down.
//
//	the handler's end                             the message              attempts counted  its ErrorClass
//	nil                                           handled                  -                 -
//	an error                                      waits, or dead           one               the SQLSTATE; "timeout"; "error"
//	one of [ErrFinal]                             dead at once             one               as above
//	a panic                                       waits, or dead           one               "panic"
//	nil after an SQL error that it swallowed      dead at once             one               "misuse"
//	Commit or Rollback, by method or in SQL text  dead at once             one               "misuse"
//	the process or the connection ends            waits, or dead           one               "crash"; the SQLSTATE; "error"
//	Run's ctx ends, and the handler fails by it   waits, due at once       none              -
//
// A COMMIT that is not answered is settled: the row says, by the token of the attempt, whether it took place. No
// attempt begins before the transaction of the last one has ended, for that one holds the row's lock.
//
// # Order
//
// Messages with one [Message].Key are handled one at a time, in the order in which they were stored. Of two
// transactions that store for one key at once, the order is that of their messages only where they exclude each other.
// A message that is committed behind a later one comes next.
//
// While the first message of a key waits for its next attempt, and while it is dead, the later ones of its key wait
// behind it. Messages of other keys, and those without a key, go on. Replay or Discard lets the key go on.
//
// # Errors
//
//	ErrInvalid   a message or a filter cannot be used; nothing was sent
//	ErrFinal     yours: no retry can help
//	ErrPanic     the handler panicked
//	ErrMisuse    the handler ended the transaction, swallowed an SQL error or left rows open
//
// Other errors are the handler's, the server's or the connection's. After an error of Store nothing is known of the
// message, as ever where a COMMIT is not answered: do not acknowledge it, and what comes again is a duplicate, or new.
//
// # Poolers, rights
//
// Nothing outlives a transaction or a statement, so all of it works behind PgBouncer in transaction mode, but
// [Listen], which needs a direct connection. Store needs SELECT and INSERT on the table; a worker, Replay and Discard
// SELECT and UPDATE; Purge DELETE as well. Verify asks for all four.
package inbox
