// Package inbox stores each message once, so that it can be acknowledged at once, and has it handled afterwards.
//
// [Store] puts the raw message into a table whose primary key is (message id, operation, source). What comes again is a
// [Duplicate]. A [Worker] then calls your [Handler] in a transaction of its own: the handler's writes stand if and only
// if the message is marked as handled. A mail that the handler sends is sent again if the attempt must be made again.
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
// [Migrate] makes the table, and [Verify] checks it. [Notify] and [Listen] wake a worker. [Table.Depth], [Table.List],
// [Table.Replay], [Table.Discard] and [Table.Purge] look after the table. Package inboxsql, below this one, is for
// database/sql.
//
// # States
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
// What waits and what is dead is never purged, however old.
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
//	the handler's end                             the message         attempts counted  its ErrorClass
//	nil                                           handled             -                 -
//	an error                                      waits, or dead      one               the SQLSTATE; "timeout"; "error"
//	one of [ErrFinal]                             dead at once        one               as above
//	a panic                                       waits, or dead      one               "panic"
//	nil after an SQL error that it swallowed      dead at once        one               "misuse"
//	Commit or Rollback, by method or in SQL text  dead at once        one               "misuse"
//	the process or the connection ends            waits, or dead      one               "crash"; the SQLSTATE; "error"
//	Run's ctx ends, and the handler fails by it   waits, due at once  none              -
//
// A COMMIT that is not answered is settled by the row's token. No attempt begins before the last one's transaction has
// ended.
//
// # Order
//
// Messages with one [Message].Key are handled one at a time, in the order in which they were stored. Two transactions
// that store for one key at once have an order only if they exclude each other; a message committed behind a later one
// comes next. While the first message of a key waits for its next attempt, and while it is dead, the later ones of its
// key wait. Others go on. Replay or Discard lets the key go on.
//
// # Errors, poolers, rights
//
//	ErrInvalid   a message or a filter cannot be used; nothing was sent
//	ErrFinal     yours: no retry can help
//	ErrPanic     the handler panicked
//	ErrMisuse    the handler ended the transaction, swallowed an SQL error or left rows open
//
// Other errors are the handler's, the server's or the connection's. After an error of Store the message may be there or
// not: do not acknowledge it.
//
// All but [Listen], which needs a direct connection, works behind PgBouncer in transaction mode. Store needs SELECT and
// INSERT on the table; a worker, Replay and Discard SELECT and UPDATE; Purge DELETE as well. Verify asks for all four.
package inbox
