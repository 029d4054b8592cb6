package idemsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Tx is the transaction as fn sees it: everything but its end. It has the methods that sqlc (DBTX) and GORM (ConnPool)
// want. If the transaction given to [Do] has no QueryRowContext or PrepareContext, they return an error.
type Tx interface {
	Conn
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// fnTx is a transaction without its end.
//
// Why not hand out the *sql.Tx: its Commit and Rollback would have to be found out afterwards, when they can be kept
// from being called at all.
type fnTx struct {
	tx     Conn
	inside claim.Inside
	rows   *sql.Rows // the last ones: a connection has no room for others while some are open
}

// run calls fn with tx. Rows that fn leaves open are closed, for while they are open the server cannot be told
// anything.
func run(ctx context.Context, tx pg.Tx, fn func(context.Context, Tx) error) error {
	t := &fnTx{tx: pg.SQLOf(tx), inside: claim.InsideOf(ctx)}
	defer t.closeRows() // whatever becomes of fn
	if err := fn(ctx, t); err != nil {
		return err
	}
	if t.closeRows() {
		return claim.Misuse(pg.ErrRowsOpen)
	}
	return nil
}

// closeRows reports whether there was something to close.
func (t *fnTx) closeRows() bool {
	if t.rows == nil {
		return false
	}
	_, err := t.rows.Columns() // an error where they are closed
	_ = t.rows.Close()
	return err == nil
}

// whole returns the transaction behind the one that fn got: what a nested Do needs to fail it. And it returns ctx
// with what that one knows of the fn that it belongs to, so that a call with another context is found, too.
func whole(ctx context.Context, tx Conn) (context.Context, Conn) {
	if t, ok := tx.(*fnTx); ok {
		return t.inside.In(ctx), t.tx
	}
	return ctx, tx
}

func (t *fnTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

func (t *fnTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := t.tx.QueryContext(ctx, query, args...)
	if err == nil {
		t.rows = rows
	}
	return rows, err
}

func (t *fnTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if q, ok := t.tx.(interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}); ok {
		return q.QueryRowContext(ctx, query, args...)
	}
	return refusal(ctx)
}

func (t *fnTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if q, ok := t.tx.(interface {
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}); ok {
		return q.PrepareContext(ctx, query)
	}
	return nil, errMissing
}

var errMissing = errors.New("idemsql: the transaction given to Do has no such method; use ExecContext or QueryContext")

// refusal returns a row whose Scan returns errMissing. Only database/sql can make a *sql.Row, and a database that
// cannot be connected to makes one with the error in it.
func refusal(ctx context.Context) *sql.Row {
	db := sql.OpenDB(unreachable{})
	defer db.Close()
	return db.QueryRowContext(context.WithoutCancel(ctx), "")
}

type unreachable struct{}

func (unreachable) Connect(context.Context) (driver.Conn, error) { return nil, errMissing }
func (unreachable) Driver() driver.Driver                        { return nil }
