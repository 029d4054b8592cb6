package pg

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
)

// inTx is the first argument of a statement that must not run outside of a transaction. pgx under database/sql asks
// it before it sends anything, and so tells of a transaction that was ended in SQL text, which a *sql.Tx does not
// know. For every other driver it is the string that it holds.
type inTx string

// Value implements driver.Valuer.
func (a inTx) Value() (driver.Value, error) { return string(a), nil }

// RewriteQuery implements pgx.QueryRewriter.
func (a inTx) RewriteQuery(_ context.Context, conn *pgx.Conn, sql string, args []any) (string, []any, error) {
	if conn.PgConn().TxStatus() == 'I' {
		return "", nil, ErrTxEnded
	}
	return sql, append([]any{string(a)}, args...), nil
}

// Send refuses a statement with the key where the driver knows that the transaction has ended: it would be committed
// alone.
func (t sqlTx) Send(ctx context.Context, stmts ...*Stmt) error {
	for _, s := range stmts {
		s.Args = insideTx(s.Args)
	}
	return bare(t.sqlConn.Send(ctx, stmts...))
}

// Query refuses it, too.
func (t sqlTx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	return bare(t.sqlConn.Query(ctx, sql, insideTx(args), row))
}

func insideTx(args []any) []any {
	if len(args) == 0 {
		return args
	}
	if first, ok := args[0].(string); ok {
		return append([]any{inTx(first)}, args[1:]...)
	}
	return args
}

// bare drops what database/sql has put around ErrTxEnded.
func bare(err error) error {
	if errors.Is(err, ErrTxEnded) {
		return ErrTxEnded
	}
	return err
}

// ended reports whether the transaction was ended in SQL text: pgx takes it for open, and its connection is in none.
func (t *pgxTx) ended(ctx context.Context) bool {
	if !alive(ctx, t.tx) {
		return false // pgx knows, and refuses by itself
	}
	conn := t.tx.Conn()
	return !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'
}
