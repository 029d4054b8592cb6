package inboxsql

import (
	"context"
	"database/sql"
	"errors"

	"github.com/pgonce/pgonce/internal/pg"
)

// handlerTx is a transaction without its end.
type handlerTx struct {
	tx   *sql.Tx
	rows *sql.Rows // the last ones: a connection has no room for others while some are open
}

var _ Tx = (*handlerTx)(nil)

// newTx returns tx as a handler sees it.
func newTx(tx pg.Tx) (*handlerTx, error) {
	own, ok := pg.SQLOf(tx).(*sql.Tx)
	if !ok {
		return nil, errors.New("inboxsql: the transaction is no *sql.Tx")
	}
	return &handlerTx{tx: own}, nil
}

// closeRows reports whether there was something to close.
func (t *handlerTx) closeRows() bool {
	if t.rows == nil {
		return false
	}
	_, err := t.rows.Columns() // an error where they are closed
	_ = t.rows.Close()
	return err == nil
}

func (t *handlerTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

func (t *handlerTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := t.tx.QueryContext(ctx, query, args...)
	if err == nil {
		t.rows = rows
	}
	return rows, err
}

func (t *handlerTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

func (t *handlerTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.tx.PrepareContext(ctx, query)
}
