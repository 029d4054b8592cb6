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
//   - Running once: [Do] in your transaction, [Run] in one of its own; [Once] holds their settings. A batch: [Once.DoMany].
//     Effects that need no reads, in one round trip: [Once.Apply].
//   - A value that duplicates get, too: [Returning].
//   - Effects outside of the database: [Call], or its parts, [Once.Reserve] and [Reservation]; [Key.External] and
//     [Key.Derive] for what a provider, or a compensation, needs of a key.
//   - Looking and mending: [Once.Lookup], [Once.Pending], [Once.Forget].
//   - Errors: [Retryable], [Error], [KeyError], and the sentinels below.
//
// # Effects outside the database
//
// A charge at a payment provider cannot be rolled back, and the process can die when the provider has charged and the
// database does not know yet. [Call] puts a reservation around it: a row that is committed before the call, with a lease
// and the number of the attempt, and settled after it, in the transaction that applies the answer. Who finds a
// reservation whose lease is over cannot know whether the call was made. It makes it again, with the same external key,
// as long as the provider still recognises that key; afterwards it does not, and returns [ErrUnknown].
//
// The states of a key, and every move between them:
//
//	            Reserve             lease over, Release
//	no row ----------------> reserved ----------------> unfinished
//	 | ^                     | | ^                       | |  |
//	 | |                     | | +-- Reserve, Extend ----+ |  |
//	 | +---- Release, Void --+-|---------------------------+  |
//	 |                         |                              |
//	 |                         +-- Confirm -------------------+---> done
//	 |                         +-- Fail ----------------------+---> finally failed
//	 +------ Do, Run ---------------------------------------------> done
//
//	from                  to              by                               on condition that
//	no row                reserved        Reserve, Call                    the row is new
//	no row                done            Do, Run                          the row is new
//	reserved              unfinished      time                             -
//	reserved              unfinished      a Call that got no answer        it is the holder
//	unfinished            reserved        Reserve, Call: another attempt   the lease is over; a Call's fits into Remembers
//	reserved, unfinished  reserved        Extend                           it is the holder
//	reserved, unfinished  done            Confirm, Call                    it is the holder
//	reserved, unfinished  finally failed  Fail, a Call's Final             it is the holder
//	reserved, unfinished  no row          Void                             it is the holder
//	reserved, unfinished  no row          Release, a Call's Unsent         it is the holder, of the first attempt
//	reserved, unfinished  unfinished      Release, a Call's Unsent         it is the holder, of a later attempt
//	done, finally failed  no row          Forget, a purge                  it is settled
//
// Each move is one statement that holds its whole condition (Extend, Confirm, Fail, Void and Release are methods of
// [Reservation]; for Reserve see [Once.Reserve]). The holder is told by the number of its attempt and the
// time of the row's creation, so that after a take-over every move of the old one fails with [ErrLostLease] and changes
// nothing. Both are the server's, as is the clock by which leases end: no statement takes a time from a client, except the
// event's own ([Key.OccurredAt]).
//
// What ErrUnknown leaves is for somebody who can look at the provider, a person or a job: list it with [Once.Pending], reserve
// each key, look, and then either confirm it with what was found, in the transaction that applies it, or void it, so
// that the next delivery begins anew. The example of Once.Pending does that.
//
// A compensation is an effect of its own, with a key derived from the first one's: a refund is
// charge.Derive("refund", refundID), as idempotent as the charge. Never undo a charge by forgetting its key.
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
// [Retryable] is the column "again?": true for later. Where it is false, keep the message until somebody has looked.
package idem
