package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// currentSQL asks for the id of the transaction that the connection is in. It is NULL outside of one, and in one that has
// written nothing: either way it's not the transaction of a claim. It has no parameters, so that every driver sends it in
// one round trip, whatever it does about preparing.
const currentSQL = `SELECT pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text::pg_catalog.int8`

// FromSQLTx adapts a transaction. Whatever has a Commit and a Rollback is taken for one. Of anything else the server is
// asked, in two statements, whether it is in a transaction: a *sql.DB fits [SQL], too, and would commit each statement by
// itself.
func FromSQLTx(ctx context.Context, q SQL) (Tx, error) {
	t := sqlTx{sqlConn{q}}
	if _, ok := q.(interface {
		Commit() error
		Rollback() error
	}); ok {
		return t, nil
	}
	// Outside of a transaction SAVEPOINT fails with 25P01.
	err := t.Send(ctx, &Stmt{SQL: `SAVEPOINT pgonce_tx`}, &Stmt{SQL: `RELEASE SAVEPOINT pgonce_tx`})
	if err != nil {
		return nil, err
	}
	return t, nil
}

type sqlTx struct{ sqlConn }

func (t sqlTx) NeedsXID() bool { return true }

func (t sqlTx) Check(ctx context.Context, xid int64) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	var current *int64
	err := t.Send(ctx, &Stmt{SQL: currentSQL, Dest: []any{&current}})
	switch {
	case err == nil && current != nil && *current == xid:
		return nil
	case err == nil, errors.Is(err, sql.ErrTxDone):
		return ErrTxEnded
	case sqlState(err) == "25P02":
		return ErrTxFailed
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}

func (t sqlTx) Fail(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	_, err := t.q.ExecContext(ctx, failSQL)
	switch {
	case sqlState(err) == "3B001", sqlState(err) == "25P02": // failed now; failed before
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return ErrTxEnded
	}
	abandon(t.q)
	if sqlState(err) == "25P01" { // there is no transaction
		return ErrTxEnded
	}
	return nil
}

// WasOver reports whether err, of a statement in a transaction, says that the transaction had failed or ended before it.
func WasOver(err error) bool { return sqlState(err) == "25P02" || errors.Is(err, sql.ErrTxDone) }

// abandon makes sure that a transaction which could not be failed cannot be committed: the server has lost it, or rows
// are open, which a Commit of database/sql would close by itself before it commits.
func abandon(q SQL) {
	switch q := q.(type) {
	case interface{ Rollback() error }:
		_ = q.Rollback()
	case interface{ Raw(f func(any) error) error }: // *sql.Conn
		// Why not return driver.ErrBadConn, as the documentation of Raw has it: database/sql would then wait for the rows
		// to be closed.
		_ = q.Raw(func(conn any) error {
			if c, ok := conn.(driver.Conn); ok {
				_ = c.Close()
			}
			return nil
		})
	}
}

// SQLDB is what [FromSQLDB] needs: a *sql.DB or *sql.Conn, or a wrapper of one. A *sql.Tx has no BeginTx, so it does not fit.
type SQLDB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// FromSQLDB adapts a database; each transaction is begun with opts, and handed to begun before any other use.
func FromSQLDB(db SQLDB, opts sql.TxOptions, begun func(*sql.Tx)) DB { return &sqlDB{db, opts, begun} }

// SQLInTx reports whether db is a single connection that is in a transaction, where its driver tells: pgx knows, and would
// only warn of the BEGIN inside; lib/pq refuses that by itself.
func SQLInTx(db SQLDB) (in bool) {
	conn, ok := db.(interface{ Raw(f func(any) error) error }) // *sql.Conn, and wrappers
	if !ok {
		return false
	}
	_ = conn.Raw(func(driverConn any) error { // where it fails, so will BEGIN
		if c, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
			in = !c.Conn().IsClosed() && c.Conn().PgConn().TxStatus() != 'I'
		}
		return nil
	})
	return in
}

type sqlDB struct {
	db    SQLDB
	opts  sql.TxOptions
	begun func(*sql.Tx)
}

// Begin begins the transaction with a context of its own, which ends with ctx until the transaction has begun, and later
// while it is committed. In between, where ctx itself would do, database/sql would roll back on its own account, in another
// goroutine, as soon as ctx is done: while fn is running, or just before the COMMIT that was going to be sent.
func (d *sqlDB) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if SQLInTx(d.db) {
		return nil, errInTx
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	opts := d.opts
	// Why a retry of database/sql's own (driver.ErrBadConn, on another connection) does no harm here: it begins once more
	// what has done nothing yet. In a transaction database/sql retries nothing.
	tx, err := d.db.BeginTx(life, &opts)
	stop()
	if err != nil {
		end()
		return nil, sqlError(ctx, err)
	}
	own := &sqlOwnTx{sqlTx{sqlConn{tx}}, tx, end}
	if err := own.Send(ctx, stmts...); err != nil { // as where ctx has ended meanwhile
		own.Rollback(ctx)
		return nil, err
	}
	d.begun(tx)
	return own, nil
}

// FromSQLAlone adapts a database for statements that are to be committed when Send returns; a connection that is in a
// transaction is refused. Each Send is one transaction.
//
// Why not the statements by themselves, where there is but one: a connection that is in a transaction of lib/pq's can only
// be told by its refusal to begin another one.
func FromSQLAlone(db SQLDB) Conn { return sqlAlone{FromSQLDB(db, sql.TxOptions{}, func(*sql.Tx) {})} }

type sqlAlone struct{ db DB }

func (c sqlAlone) Send(ctx context.Context, stmts ...*Stmt) error {
	tx, err := c.db.Begin(ctx, stmts...)
	if err != nil {
		return err
	}
	return commit(ctx, tx)
}

func (c sqlAlone) Query(ctx context.Context, query string, args []any, row func(scan func(dest ...any) error) error) error {
	tx, err := c.db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := tx.Query(ctx, query, args, row); err != nil {
		tx.Rollback(ctx)
		return err
	}
	return commit(ctx, tx)
}

// commit commits, unless ctx is done: then nothing is sent, and it's a plain no.
func commit(ctx context.Context, tx OwnTx) error {
	if err := ctx.Err(); err != nil {
		tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

type sqlOwnTx struct {
	sqlTx
	tx  *sql.Tx
	end context.CancelFunc // of the context that the transaction was begun with
}

func (t *sqlOwnTx) Commit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, t.end)
	defer t.end()
	defer stop()
	return withoutDetail(t.tx.Commit())
}

func (t *sqlOwnTx) Rollback(context.Context) {
	slow := time.AfterFunc(cleanupTime, t.end)
	defer t.end()
	defer slow.Stop()
	// There is nothing to do with the error: it says that the transaction is over already, or the driver has given up the
	// connection, which is the roll back, too.
	_ = t.tx.Rollback()
}

func (t *sqlOwnTx) SendAndRollback(ctx context.Context, stmts ...*Stmt) error {
	defer t.Rollback(ctx)
	return t.Send(ctx, stmts...)
}
