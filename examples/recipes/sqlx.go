package recipes

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// payWithSQLX stores a payment once and returns the payments there are. db may be a *sqlx.DB: Run begins the
// transaction. Rows are scanned by sqlx.StructScan; named parameters become numbered ones by sqlx.Named and
// sqlx.Rebind.
func payWithSQLX(ctx context.Context, db *sqlx.DB, p Payment) (all []Payment, out idem.Outcome, err error) {
	out, err = idemsql.Run(ctx, db, payments.Key(p.ID), func(ctx context.Context, tx idemsql.Tx) error {
		query, args, err := sqlx.Named(`INSERT INTO payments (id, amount) VALUES (:id, :amount)`, p)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, sqlx.Rebind(sqlx.DOLLAR, query), args...); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, `SELECT id, amount FROM payments ORDER BY id`)
		if err != nil {
			return err
		}
		all = nil // fn may run again
		return sqlx.StructScan(rows, &all)
	})
	return all, out, err
}

// payInTx does it in a transaction that is sqlx's own, with everything that a *sqlx.Tx has.
func payInTx(ctx context.Context, db *sqlx.DB, p Payment) (idem.Outcome, error) {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	out, err := idemsql.Do(ctx, tx, payments.Key(p.ID), func(ctx context.Context, _ idemsql.Tx) error {
		_, err := tx.NamedExecContext(ctx, `INSERT INTO payments (id, amount) VALUES (:id, :amount)`, p)
		return err
	})
	if err != nil {
		return 0, err
	}
	return out, tx.Commit()
}
