// Package idemsql is package idem for database/sql: it makes the effect of a message happen once in PostgreSQL, however
// often the message is delivered.
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
// [Do] runs fn in your transaction, [Run] in one of its own. Keys, outcomes, errors and the table in the database are
// those of package [github.com/pgonce/pgonce/idem], so programs on either can share it. A name promises what its
// namesake in idem does; here stands what differs. [Migrate], [Verify], [Maintain] and [Clean] are package dedup's.
// Table.DDL, Table.PurgeSQL and Ages are in dedup itself.
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
// GORM and sqlx inside Run are in examples/recipes.
//
// # How it differs from package idem
//
//   - Each statement is a round trip. Run takes five on a first delivery, where idem takes three; a [Call] nine, where
//     idem takes four: its reservation is a transaction of four, and each end of an attempt without an answer one of
//     three. lib/pq without binary_parameters=yes takes two for a statement with parameters, as does pgx in the mode
//     describe_exec for a query.
//   - There is no Apply: database/sql sends one statement after the other. With pgx/stdlib, call idem's on the
//     *pgx.Conn that [sql.Conn.Raw] leads to: c.(*stdlib.Conn).Conn(). The table and the keys are the same.
//   - After fn one short query asks whether the claim's transaction is still open, so fn's Tx needs no refusals.
//   - A *sql.DB has the methods that Do needs, and is refused at run time, see Do.
//   - The driver decides whether it reports the COMMIT of a failed transaction. Both drivers below do:
//     pgx.ErrTxCommitRollback, pq.ErrInFailedTransaction. What you commit yourself counts only when Commit returned
//     nil.
//   - Rows that fn leaves open on a *sql.Conn, got elsewhere than from its Tx, block Do until they are closed.
//
// # Drivers
//
// It is tested with github.com/jackc/pgx/v5/stdlib in each of pgx's five query exec modes, and with github.com/lib/pq,
// with binary_parameters=yes and without. Of a driver it needs errors with a method SQLState() string.
package idemsql
