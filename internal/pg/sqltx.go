package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// markSQL asks for the mark of the transaction that the connection is in; NULL or empty where it has none, or there
// is no transaction. It has no parameters, so that every driver sends it in one round trip, whatever it does about
// preparing. Why not read the claim's row: that takes parameters, and fn may have led the table's name to another
// table.
const markSQL = `SELECT pg_catalog.current_setting('` + Mark + `', true)`

// errUndone: the two cannot be told apart, and are met in the same way.
var errUndone = fmt.Errorf("%w, or was rolled back to a savepoint that is older than the claim", ErrTxEnded)

// FromSQLTx adapts a transaction. Whatever has a Commit and a Rollback is taken for one. Of anything else the server is
// asked, in two statements, whether it is in a transaction: a *sql.DB fits [SQL], too, and would commit each
// statement by itself.
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

func (t sqlTx) NeedsMark() bool { return true }

// SQLOf returns the transaction behind tx, which an adapter of this file made.
func SQLOf(tx Tx) SQL { return tx.(interface{ sql() SQL }).sql() }

func (t sqlTx) sql() SQL { return t.q }

func (t sqlTx) Check(caller context.Context, mark int64) error {
	ctx, cancel := Detached(caller)
	defer cancel()
	var current *string
	err := t.Send(ctx, &Stmt{SQL: markSQL, Dest: []any{&current}})
	switch {
	case err == nil && current != nil:
		if now, err := strconv.ParseInt(*current, 10, 64); err == nil && stands(mark, now) {
			return nil
		}
		return errUndone
	case err == nil:
		return errUndone
	case errors.Is(err, sql.ErrTxDone):
		return done(caller)
	case sqlState(err) == "25P02":
		return ErrTxFailed
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}

// done says why the *sql.Tx is done: its owner ended it; or its context did, which is that of the call as a rule.
func done(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrCanceled, err)
	}
	return ErrTxEnded
}

func (t sqlTx) Fail(caller context.Context) error {
	ctx, cancel := Detached(caller)
	defer cancel()
	_, err := t.q.ExecContext(ctx, failSQL)
	switch {
	case sqlState(err) == "3B001", sqlState(err) == "25P02": // failed now; failed before
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return done(caller)
	}
	lost := abandon(t.q)
	if sqlState(err) == "25P01" { // there is no transaction
		return ErrTxEnded
	}
	return lost
}

// WasOver reports whether err, of a statement in a transaction, says that the transaction had failed or ended before
// it.
func WasOver(err error) bool {
	return sqlState(err) == "25P02" || errors.Is(err, sql.ErrTxDone) || errors.Is(err, ErrTxEnded)
}

// abandon makes sure that a transaction which could not be failed cannot be committed: the server has lost it, or
// rows are open, which a Commit of database/sql would close by itself before it commits. It returns ErrLost where the
// roll back did not reach the server. That tells a lost connection from open rows, which stdlib both calls
// driver.ErrBadConn.
func abandon(q SQL) (lost error) {
	switch q := q.(type) {
	case interface{ Rollback() error }:
		return rolledBack(q.Rollback())
	case interface{ Raw(f func(any) error) error }: // *sql.Conn
		// Why not return driver.ErrBadConn, as the documentation of Raw has it: database/sql would then wait for the rows
		// to be closed.
		_ = q.Raw(func(conn any) error {
			if c, ok := conn.(interface{ Conn() *pgx.Conn }); ok && c.Conn().IsClosed() {
				lost = ErrLost
			}
			if c, ok := conn.(driver.Validator); ok && !c.IsValid() {
				lost = ErrLost
			}
			if c, ok := conn.(driver.Conn); ok {
				_ = c.Close()
			}
			return nil
		})
	}
	return lost
}

// rolledBack says what the error of a Rollback means.
func rolledBack(err error) error {
	if err == nil || errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return ErrLost
}

// SQLDB is what [FromSQLDB] needs: a *sql.DB or *sql.Conn, or a wrapper of one. A *sql.Tx has no BeginTx, so it does
// not fit.
type SQLDB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// FromSQLDB adapts a database; each transaction is begun with opts.
func FromSQLDB(db SQLDB, opts sql.TxOptions) DB { return &sqlDB{db, opts} }

// SQLInTx reports whether db is a single connection that is in a transaction, where its driver tells: pgx knows, and
// would only warn of the BEGIN inside; lib/pq refuses that by itself.
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
	db   SQLDB
	opts sql.TxOptions
}

func (d *sqlDB) NeedsMark() bool { return true }

// Begin begins the transaction with a context of its own, which ends with ctx until the transaction has begun, and
// later while it is committed. In between, where ctx itself would do, database/sql would roll back on its own
// account, in another goroutine, as soon as ctx is done: while fn is running, or just before the COMMIT that was
// going to be sent.
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
		_ = own.Rollback(ctx)
		return nil, err
	}
	return own, nil
}

// FromSQLAlone adapts a database for statements that are to be committed when Send returns; a connection that is in a
// transaction is refused. Each Send is one transaction.
//
// Why not the statements by themselves, where there is but one: a connection that is in a transaction of lib/pq's can
// only be told by its refusal to begin another one.
func FromSQLAlone(db SQLDB) Conn { return sqlAlone{FromSQLDB(db, sql.TxOptions{})} }

type sqlAlone struct{ db DB }

func (c sqlAlone) alone() DB { return c.db }

func (c sqlAlone) Send(ctx context.Context, stmts ...*Stmt) error {
	tx, err := c.db.Begin(ctx, stmts...)
	if err != nil {
		return err
	}
	return commit(ctx, tx)
}

func (c sqlAlone) Query(
	ctx context.Context, query string, args []any, row func(scan func(dest ...any) error) error,
) error {
	tx, err := c.db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := tx.Query(ctx, query, args, row); err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return commit(ctx, tx)
}

// commit commits, unless ctx is done: then nothing is sent, and it's a plain no.
func commit(ctx context.Context, tx OwnTx) error {
	if err := ctx.Err(); err != nil {
		_ = tx.Rollback(ctx)
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
	return WithoutDetail(t.tx.Commit())
}

func (t *sqlOwnTx) Rollback(context.Context) error {
	slow := time.AfterFunc(CleanUpTime, t.end)
	defer t.end()
	defer slow.Stop()
	return rolledBack(t.tx.Rollback())
}

func (t *sqlOwnTx) SendAndRollback(ctx context.Context, stmts ...*Stmt) error {
	defer func() { _ = t.Rollback(ctx) }()
	return t.Send(ctx, stmts...)
}
