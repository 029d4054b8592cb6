package pg

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// errWriterInTx: a BEGIN inside of a transaction is only a warning, and the COMMIT would be the caller's.
var errWriterInTx = errors.New("the connection is in a transaction already")

// WriterPgx adapts a pool or connection for transactions of pgonce's own: READ COMMITTED and READ WRITE, whatever the
// session's defaults are.
func WriterPgx(db PgxDB) DB { return pgxWriter{db} }

type pgxWriter struct{ db PgxDB }

func (pgxWriter) NeedsMark() bool { return false }

func (w pgxWriter) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if PgxInTx(w.db) {
		return nil, errWriterInTx
	}
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return FromPgxDB(w.db, opts).Begin(ctx, stmts...)
}

// WriterSQL is [WriterPgx] for database/sql, whose options cannot ask for READ WRITE: a statement of its own does.
func WriterSQL(db SQLDB) DB {
	return sqlWriter{FromSQLDB(db, sql.TxOptions{Isolation: sql.LevelReadCommitted}), db}
}

type sqlWriter struct {
	DB
	db SQLDB
}

func (w sqlWriter) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if SQLInTx(w.db) {
		return nil, errWriterInTx
	}
	return w.DB.Begin(ctx, append([]*Stmt{{SQL: `SET TRANSACTION READ WRITE`}}, stmts...)...)
}
