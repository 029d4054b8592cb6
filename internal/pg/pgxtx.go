package pg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// FromPgxTx adapts a pgx transaction, real or nested (a savepoint).
func FromPgxTx(tx pgx.Tx) Tx { return &pgxTx{pgxConn{tx}, tx} }

type pgxTx struct {
	pgxConn
	tx pgx.Tx
}

// PgxOf returns the transaction behind tx, which an adapter of this file made.
func PgxOf(tx Tx) pgx.Tx { return tx.(interface{ pgx() pgx.Tx }).pgx() }

func (t *pgxTx) pgx() pgx.Tx { return t.tx }

// Send sends a single statement without a batch: a claim that has no limit costs what its INSERT by hand would.
func (t *pgxTx) Send(ctx context.Context, stmts ...*Stmt) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	if len(stmts) != 1 {
		return t.pgxConn.Send(ctx, stmts...)
	}
	s := stmts[0]
	if s.Dest != nil {
		rows, err := t.tx.Query(ctx, s.SQL, s.Args...)
		if err == nil {
			err = s.read(rows)
			rows.Close()
		}
		return WithoutDetail(err)
	}
	tag, err := t.tx.Exec(ctx, s.SQL, s.Args...)
	if err != nil {
		return WithoutDetail(err)
	}
	s.Rows, s.Done = tag.RowsAffected(), true
	return nil
}

// Query is held back where Send would be.
func (t *pgxTx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	return t.pgxConn.Query(ctx, sql, args, row)
}

// ready returns why nothing may be sent.
func (t *pgxTx) ready(ctx context.Context) error {
	if t.ended(ctx) {
		return ErrTxEnded
	}
	// Why not leave it to pgx: what it does before it finds the connection busy can keep the open rows from being closed.
	if conn := t.tx.Conn(); !conn.IsClosed() && conn.PgConn().IsBusy() && alive(ctx, t.tx) {
		return notSent{ErrRowsOpen}
	}
	return nil
}

// alive reports whether tx has not ended. An empty batch costs no round trip and asks pgx's own flag.
// Why not tx.Conn().PgConn().TxStatus() alone: after the transaction of a pool ended, its connection serves somebody
// else, and so would the answer.
func alive(ctx context.Context, tx pgx.Tx) bool {
	return tx.SendBatch(ctx, &pgx.Batch{}).Close() == nil
}

func (t *pgxTx) NeedsMark() bool { return false }

func (t *pgxTx) Check(ctx context.Context, _ int64) error {
	if !alive(ctx, t.tx) {
		return ErrTxEnded
	}
	conn := t.tx.Conn()
	switch {
	case conn.IsClosed():
		return ErrLost
	case conn.PgConn().IsBusy():
		return ErrRowsOpen
	}
	switch conn.PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return ErrTxFailed
	}
	return ErrTxEnded
}

func (t *pgxTx) Fail(ctx context.Context) error {
	switch err := t.Check(ctx, 0); err {
	case ErrTxEnded, ErrLost:
		return err
	case ErrTxFailed:
		return nil
	}
	ctx, cancel := Detached(ctx)
	defer cancel()
	conn := t.tx.Conn()
	if !conn.PgConn().IsBusy() {
		_, _ = t.tx.Exec(ctx, failSQL)
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'E' {
		_ = conn.Close(ctx)
	}
	return nil
}

// PgxDB is what [FromPgxDB] needs: a pool or a connection, or a wrapper of one. A pgx.Tx has no BeginTx, so it does
// not fit.
type PgxDB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// FromPgxDB adapts a pool or connection; each transaction is begun with opts.
func FromPgxDB(db PgxDB, opts pgx.TxOptions) DB {
	return &pgxDB{db, nil, opts}
}

// FromPgxLender is FromPgxDB, for a db that lend takes a connection out of, where lend is not nil. What lend returns
// besides gives the connection back. The pgx.Tx of a pool would do that only with a round trip of its own, though the
// server has ended the transaction already.
func FromPgxLender(db PgxDB, lend Lend, opts pgx.TxOptions) DB {
	return &pgxDB{db, lend, opts}
}

// Lend takes a connection out of a pool.
type Lend func(context.Context) (conn PgxDB, back func(), err error)

type pgxDB struct {
	db   PgxDB
	lend Lend
	opts pgx.TxOptions
}

func (d *pgxDB) NeedsMark() bool { return false }

var errNoTx = errors.New("SendBatch gave no transaction for a batch that begins one; a wrapper must pass on " +
	"BatchResults.Tx")

// errInTx: a BEGIN inside of a transaction is only a warning, and the ROLLBACK after a duplicate would end the
// caller's. And a reservation would not be committed when the call that it is for is made.
var errInTx = errors.New("the connection is in a transaction already; use Do there, or another connection")

// PgxInTx reports whether db is a single connection that is in a transaction.
func PgxInTx(db any) bool {
	var conn *pgx.Conn
	switch db := db.(type) {
	case *pgx.Conn:
		conn = db
	case interface{ Conn() *pgx.Conn }: // *pgxpool.Conn, and wrappers
		conn = db.Conn()
	}
	return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I'
}

// FromPgxAlone adapts a pool or connection for statements that are to be committed when Send returns: a connection
// that is in a transaction is refused.
func FromPgxAlone(db PgxDB) Conn { return pgxAlone{pgxConn{db}, db} }

// DBOf returns the database behind conn, which FromPgxAlone or [FromSQLAlone] made.
func DBOf(conn Conn) DB { return conn.(interface{ alone() DB }).alone() }

type pgxAlone struct {
	pgxConn
	db PgxDB
}

func (c pgxAlone) Send(ctx context.Context, stmts ...*Stmt) error {
	if PgxInTx(c.db) {
		return errInTx
	}
	return c.pgxConn.Send(ctx, stmts...)
}

func (c pgxAlone) alone() DB { return FromPgxDB(c.db, pgx.TxOptions{}) }

func (d *pgxDB) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if PgxInTx(d.db) {
		return nil, errInTx
	}
	db, back := d.db, func() {}
	if d.lend != nil {
		var err error
		if db, back, err = d.lend(ctx); err != nil {
			return nil, err
		}
	}
	b := &pgx.Batch{}
	b.BeginTx(d.opts)
	queue(b, stmts...)
	br := db.SendBatch(ctx, b)
	tx := br.Tx()
	err := br.Close()
	if tx == nil {
		back()
		if err == nil {
			err = errNoTx
		}
		return nil, err
	}
	own := &pgxOwnTx{pgxTx{pgxConn{tx}, tx}, d.lend != nil, back}
	if err != nil {
		_ = own.Rollback(ctx)
		return nil, WithoutDetail(err)
	}
	return own, nil
}

type pgxOwnTx struct {
	pgxTx
	lent bool // the connection is not tx's to give back
	back func()
}

func (t *pgxOwnTx) Commit(ctx context.Context) error {
	defer t.back()
	return WithoutDetail(t.tx.Commit(ctx))
}

func (t *pgxOwnTx) Rollback(ctx context.Context) error {
	defer t.back()
	ctx, cancel := Detached(ctx)
	defer cancel()
	// Open rows would make the ROLLBACK fail, and pgx then closes the connection: that is the roll back, too. pgx does
	// the same for any other failure.
	if err := t.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return ErrLost
	}
	return nil
}

// SendAndRollback takes one round trip where the connection is lent, and two elsewhere: a wrapper's pgx.Tx cannot be
// told that the server has ended the transaction. (A Commit with a done context would tell it, and be an error in
// every trace.)
func (t *pgxOwnTx) SendAndRollback(ctx context.Context, stmts ...*Stmt) error {
	if !t.lent {
		err := t.pgxConn.Send(ctx, stmts...)
		_ = t.Rollback(ctx)
		return err
	}
	b := &pgx.Batch{}
	queue(b, stmts...)
	b.Queue("ROLLBACK")
	err := t.tx.SendBatch(ctx, b).Close()
	if err != nil || t.tx.Conn().PgConn().TxStatus() != 'I' {
		_ = t.Rollback(ctx)
		return WithoutDetail(err)
	}
	t.back()
	return nil
}
