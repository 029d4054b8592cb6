// Package idemsql is package idem for database/sql: it makes the effect of a message happen once in PostgreSQL, however
// often the message is delivered, in a transaction of database/sql.
//
// [Do] inserts a key into a table and runs your function only when the row is new, in one transaction: key and effect
// are committed together or not at all. The primary key of that table is the guarantee; nothing is decided by a lookup.
// [Run] does the same in a transaction of its own, with the retries that a transaction needs. Keys, outcomes, records and
// errors are those of package idem, and so is the table of errors in its documentation; the table in the database is the
// same, too, so that programs on either package can share it. What is not promised is anything outside of that
// transaction: a mail that fn sends is sent again when the transaction has to run again.
//
// # Basic use
//
//	var activations = idem.Scope{Source: "stripe", Operation: "activate-subscription"}
//
//	func handle(ctx context.Context, db *sql.DB, eventID, subscription string) error {
//		out, err := idemsql.Run(ctx, db, activations.Key(eventID), func(ctx context.Context, tx idemsql.Tx) error {
//			_, err := tx.ExecContext(ctx, `UPDATE subscriptions SET active = true WHERE id = $1`, subscription)
//			return err
//		})
//		if err != nil {
//			return err // do not acknowledge: the message must come again
//		}
//		log.Print(out) // executed or duplicate: acknowledge both
//		return nil
//	}
//
// The table is made by [Migrate], and proven by [Verify].
//
// # Finding what you need
//
//   - Running once: [Do] in your transaction, [Run] in one of its own; [Once] holds their settings. A batch: [Once.DoMany].
//   - A value that duplicates get, too: [Returning].
//   - Effects outside of the database: [Call], or its parts, [Once.Reserve] and [Reservation]; what they promise, and the
//     states of a key, is in the documentation of package idem.
//   - Looking and mending: [Once.Lookup], [Once.Pending], [Once.Forget].
//   - The table: [Migrate], [Verify].
//   - What they take and give: [Conn], [DB], [Tx].
//   - Keys and errors: package [github.com/pgonce/pgonce/idem].
//
// # sqlx, GORM, sqlc and others
//
// Do takes whatever has ExecContext and QueryContext and is in a transaction. fn may use that transaction's own object:
//
//	err := db.Transaction(func(tx *gorm.DB) error { // GORM
//		_, err := idemsql.Do(ctx, tx.Statement.ConnPool, key, func(ctx context.Context, _ idemsql.Tx) error {
//			return tx.WithContext(ctx).Create(&payment).Error
//		})
//		return err
//	})
//
// The Tx that fn gets fits where sqlc wants its DBTX, and GORM its ConnPool:
//
//	out, err := idemsql.Run(ctx, db, key, func(ctx context.Context, tx idemsql.Tx) error {
//		return store.New(tx).AddPayment(ctx, payment) // sqlc
//	})
//
// GORM and sqlx inside of Run, which begins the transaction itself, are in examples/recipes.
//
// # How it differs from package idem
//
// The situations and their answers are the same. What database/sql cannot do makes these differences:
//
//   - A round trip for each statement. Run takes five on a first delivery, where idem takes three; the claim cannot travel
//     with BEGIN. lib/pq without binary_parameters=yes takes two for a statement that has parameters, as does pgx in the
//     mode describe_exec for a query. A [Call] takes nine, where idem takes four: a reservation is a transaction of its own,
//     of four round trips; each end of an attempt without an answer is one of three.
//   - There is no Apply: database/sql sends one statement after the other. With pgx/stdlib, call idem's on the *pgx.Conn
//     that [sql.Conn.Raw] leads to: c.(*stdlib.Conn).Conn(). The table and the keys are the same.
//   - database/sql does not tell the state of a transaction, so after fn one short query asks the server whether the
//     transaction that holds the key is still open. A COMMIT or ROLLBACK that fn ran as SQL text is found by it, even one
//     that begins the next transaction at once (AND CHAIN), and so is a ROLLBACK TO a savepoint older than the claim.
//   - fn's Tx has no Commit and no Rollback, so there is nothing to refuse.
//   - A *sql.DB has the methods that Do needs. It is refused at run time, see Do.
//   - Whether a COMMIT of a failed transaction is reported is up to the driver. Both drivers below do: pgx.ErrTxCommitRollback,
//     pq.ErrInFailedTransaction. What you commit yourself counts only when Commit returned nil.
//   - A *sql.Conn on which fn leaves rows open that it got elsewhere than from its Tx blocks Do, as it would block the next
//     statement of yours: database/sql waits for the rows to be closed.
//
// # Tables
//
// [Migrate], [Verify], [Maintain] and [Clean] are what package dedup does, over database/sql. Everything that needs no database is
// in dedup itself: Table.DDL, Table.PurgeSQL, Ages.
//
// # Drivers
//
// It is tested with github.com/jackc/pgx/v5/stdlib in each of pgx's five query exec modes, and with github.com/lib/pq,
// with binary_parameters=yes and without. From a driver it asks for the type of its errors: a method SQLState() string.
package idemsql
