// Package outbox publishes events of a transaction after its COMMIT: at least once, and in order for each key.
//
// [Append] stores an event in the transaction that changes your data, so both are committed or neither is. A [Relay]
// hands committed events to your [Publisher], and deletes them when the broker has confirmed. Any number of relays may
// run. A relay that dies after the broker's answer has published, and the next one publishes again. The consumer takes
// [Event].ID as its key for package idem, so that the effect happens once.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
//			return err
//		}
//		return outbox.Append(ctx, tx, outbox.Event{Topic: "orders", Key: order, Payload: body})
//	})
//
// and in every process, or in some:
//
//	err := outbox.Relay{Publisher: outbox.PublisherFunc(publish)}.Run(ctx, pool)
//
// [Migrate] makes the tables, and [Verify] checks them. [Notify] and [Listen] wake a relay. [Table.Lag],
// [Table.Parked], [Table.Retry] and [Table.Discard] look after the table. Package outboxsql, below this one, is for
// database/sql.
//
// # Order
//
// Events with one Key are published one after the other, in the order of the numbers that Append gave them. Two
// transactions that append for one key at once have an order only if they exclude each other. Let both change or lock
// the same row (the order, the account) before they append. Otherwise a number may be lower and its COMMIT later. Such
// an event is published when it is committed: none is skipped.
//
// Events without a Key have no order. One relay at a time leases a key's lane, one of 32. A relay that stalls for
// longer than its lease may have published what another publishes again. It can delete nothing then.
//
// # What fails
//
// An event that fails is tried again after MinRetry, then after twice as long each time, up to MaxRetry. After
// MaxAttempts it is parked. Meanwhile the later events of its key wait behind it, and other keys go on. [Table.Retry]
// makes a parked event due again, and [Table.Discard] gives it up.
//
//	error of Publish           what the relay does                                         attempts counted
//	nil                        deletes the events                                          -
//	an [EventErrors]           deletes those with nil, holds the others and their keys     one, of each key's first failure
//	one of [ErrUnavailable]    leaves everything as it is, and the lane alone for a while  none
//	any other, or a panic      publishes the batch again, one event at a time              one, of each that fails alone
//
// What has failed before is published after what is new, in a call of its own, and a lane with nothing else due is
// taken every other time. So it holds up no other key. Until something of a lane was published the broker may be to
// blame: then one new event has its attempt counted, the next time two, then four. A relay that finds too little time
// for a batch makes it smaller.
//
// # Errors, poolers, wake-ups
//
//	ErrInvalid       Append, Retry, Discard: an event or an id cannot be stored; nothing was sent
//	ErrPanic         Relay.Done: the Publisher panicked; handled as any other error of its
//	ErrUnavailable   yours, see above
//
// Other errors are the server's or the connection's. After a relay's COMMIT that was not answered, its events may be
// published again. Your own transaction's COMMIT you settle as ever.
//
// All but [Listen], which needs a direct connection, works behind PgBouncer in transaction mode. A relay looks for
// events every 25 ms. Append sends no NOTIFY: a COMMIT with one takes a lock of the whole server, and a listener that
// has stopped fills the server's queue until such COMMITs fail.
package outbox
