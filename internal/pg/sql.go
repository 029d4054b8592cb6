package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// SQL is what the adapter needs of database/sql: a Tx, Conn, DB, or anything with their two methods (sqlx, GORM's
// ConnPool).
type SQL interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// FromSQL adapts a database/sql connection or transaction.
func FromSQL(q SQL) Conn { return sqlConn{q} }

type sqlConn struct{ q SQL }

func (c sqlConn) Send(ctx context.Context, stmts ...*Stmt) error {
	for _, s := range stmts {
		if err := c.sendOne(ctx, s); err != nil {
			return err
		}
		s.Done = true
	}
	return nil
}

func (c sqlConn) sendOne(ctx context.Context, s *Stmt) error {
	if s.Dest == nil {
		if err := ctx.Err(); err != nil {
			return notSent{err} // database/sql returns the bare error, which may as well come in the middle
		}
		res, err := c.q.ExecContext(ctx, s.SQL, s.Args...)
		if err != nil {
			return sqlError(ctx, err)
		}
		s.Rows, err = res.RowsAffected()
		return err
	}
	return c.Query(ctx, s.SQL, s.Args, func(scan func(dest ...any) error) error {
		if s.Rows++; s.Rows > 1 {
			return nil
		}
		return scan(s.Dest...)
	})
}

func (c sqlConn) Query(
	ctx context.Context, query string, args []any, row func(scan func(dest ...any) error) error,
) error {
	if err := ctx.Err(); err != nil {
		return notSent{err}
	}
	rows, err := c.q.QueryContext(ctx, query, args...)
	if err != nil {
		return sqlError(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return sqlError(ctx, rows.Err())
}

// sqlError drops what must not be passed on, and says that ctx has ended where a driver does not: lib/pq then asks the
// server to cancel the statement, and reports its 57014.
func sqlError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	err = WithoutDetail(err)
	if end := ctx.Err(); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

// sqlState returns the SQLSTATE of an error of any driver, "" where it has none.
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}
