// Package idem makes the effect of a message happen once in PostgreSQL, however often the message is delivered.
//
// [Do] inserts a key into a table and runs your function only when the row is new, in one transaction: key and effect
// are committed together or not at all. The primary key of that table is the guarantee; nothing is decided by a lookup.
// [Run] does the same in a transaction of its own, with the retries that a transaction needs. What idem does not promise
// is anything outside of that transaction: a mail that fn sends is sent again when the transaction has to run again.
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
// The table is made by [github.com/pgonce/pgonce/dedup.Migrate], and proven by [github.com/pgonce/pgonce/dedup.Verify].
//
// # Finding what you need
//
//   - Keys: [Scope.Key], [Scope.HashedKey], [Key.OccurredAt], [Key.WithPayload], [Key.Validate].
//   - Running once: [Do] in your transaction, [Run] in one of its own; [Once] holds their settings.
//   - Looking and mending: [Once.Lookup], [Once.Forget].
//   - Errors: [Retryable], [Error], [KeyError], and the sentinels below.
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
//	ErrPayloadMismatch       the key came with another payload             after a look  no      422
//	ErrExpired               the key's time is before the retention        after a look  no      422
//	*FinalError              the key ended in a final failure              yes           no      the stored one
//	*KeyError                the key cannot be stored                      dead letter   no      400
//	*Error, Unknown          COMMIT was not answered                       no            later   503, Retry-After
//	40001, 40P01             a conflict, after Run's tries or with Do      no            later   503, Retry-After
//	lost connection, 57P0x   the server went away                          no            later   503, Retry-After
//	55P03                    your lock_timeout                             no            later   503, Retry-After
//	57014                    your statement_timeout, or a cancel request   no            later   503, Retry-After
//	25006                    connected to a standby                        no            later   503, Retry-After
//	42P01, 42P10, 42501      the table, its constraint or a right missing  no            no      500, wake somebody
//	the context's error      the caller gave up; nothing was done          no            later   503, Retry-After
//	fn's own error           whatever fn returned, unchanged               fn's to say   -       fn's to say
//
// [Retryable] is the column "again?": true for later. Where it is false, keep the message until somebody has looked.
package idem
