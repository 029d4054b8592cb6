// Package idem makes the effect of a message happen once in PostgreSQL, however often the message is delivered.
//
// [Do] inserts a key into a table and runs your function only if the row is new. Both are in one transaction: key and
// effect are committed together or not at all. The table's primary key is the guarantee, never a lookup. [Run] does the
// same in a transaction of its own, with retries. Nothing is promised outside that transaction: a mail that fn sends is
// sent again when the transaction has to run again.
//
// # Basic use
//
//	var activations = idem.Scope{Source: "stripe", Operation: "activate-subscription"}
//
//	func handle(ctx context.Context, pool *pgxpool.Pool, eventID, subscription string) error {
//		out, err := idem.Run(ctx, pool, activations.Key(eventID), func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `UPDATE subscriptions SET active = true WHERE id = $1`, subscription)
//			return err
//		})
//		if err != nil {
//			return err // do not acknowledge: the message must come again
//		}
//		log.Print(out) // executed or duplicate: acknowledge both
//		return nil
//	}
//
// [github.com/pgonce/pgonce/dedup.Migrate] makes the table, and [github.com/pgonce/pgonce/dedup.Verify] proves it.
//
// # Finding what you need
//
//   - Keys: [Scope.Key], [Scope.HashedKey], [Key.OccurredAt], [Key.WithPayload], [Key.Validate].
//   - Running once: [Do] in your transaction, [Run] in one of its own; [Once] holds their settings. A batch:
//     [Once.DoMany].
//     Effects that need no reads, in one round trip: [Once.Apply].
//   - A value that duplicates get, too: [Returning].
//   - Effects outside the database: [Call], or its parts, [Once.Reserve] and [Reservation]; [Key.External] and
//     [Key.Derive] for a provider, or a compensation.
//   - Looking and fixing: [Once.Lookup], [Once.Pending], [Once.Forget].
//   - Errors: [Retryable], [Error], [KeyError], and the sentinels below.
//
// # Effects outside the database
//
// A charge at a payment provider cannot be rolled back, and the process can die before the database knows of it. [Call]
// commits a reservation before the call, with a lease and the number of the attempt. It settles it afterwards, in the
// transaction that applies the answer. When a lease is over, nobody here knows whether the call was made. The next
// attempt makes it again, with the same external key, while the provider still recognises that key. Afterwards it
// returns [ErrUnknown]; [Once.Pending] says how to settle that. STATES.md, beside this file, has the states of a key
// and every move.
//
// A compensation is an effect of its own, with a key derived from the first one's: a refund is charge.Derive("refund",
// refundID). Never undo a charge by forgetting its key.
//
// # Errors
//
// What a caller can get, and what to do with the delivery:
//
//	outcome or error         cause                                         acknowledge?  again?  HTTP
//	Executed                 the effect is done now                        yes           no      200
//	Duplicate                the effect was done before                    yes           no      200
//	ErrInProgress            another call holds the key                    no            later   409, Retry-After
//	ErrUnfinished            a reservation ran out                         no            no      409
//	ErrLostLease             the attempt outlived its lease                no            later   409, Retry-After
//	ErrUnknown               a call broke off, and may be forgotten        no            no      500, wake somebody
//	ErrPayloadMismatch       the key came with another payload             after a look  no      422
//	ErrExpired               the key's time is before the retention        after a look  no      422
//	ErrFuture                the key's time is in the future               after a look  no      422
//	ErrNested                fn called for its own key                     no            no      500, wake somebody
//	*FinalError              the key ended in a final failure              yes           no      422, or what you stored
//	*KeyError                the key cannot be stored                      dead letter   no      400
//	*Error, Unknown          COMMIT was not answered                       no            later   503, Retry-After
//	40001, 40P01             a conflict, after Run's tries or with Do      no            later   503, Retry-After
//	lost connection, 57P0x   the server went away                          no            later   503, Retry-After
//	55P03                    your lock_timeout, or DDL for all of MaxWait  no            later   503, Retry-After
//	57014                    your statement_timeout, or a cancel request   no            later   503, Retry-After
//	57014, with MaxWait      also: the server was too slow                 no            later   503, Retry-After
//	25006                    connected to a standby                        no            later   503, Retry-After
//	42P01, 42P10, 42501      the table, its constraint or a right missing  no            no      500, wake somebody
//	42703, 55000             a column missing, the constraint deferrable   no            no      500, wake somebody
//	no partition for it      dedup.Table.Maintain has not run              no            no      500, wake somebody
//	the context's error      the caller gave up; nothing was done          no            later   503, Retry-After
//	Send's own error         no answer, and the provider Remembers         no            later   503, Retry-After
//	Send's, Remembers 0      no answer, and none will be asked for         no            no      500, wake somebody
//	fn's own error           whatever fn returned, unchanged               fn's to say   -       fn's to say
//	Apply's own error        unchanged; the provider has been asked        no            -       Apply's to say
//
// [Retryable] is the column "again?", and [HTTPStatus] the last. Where Retryable is false, keep the message until
// somebody has looked.
package idem
