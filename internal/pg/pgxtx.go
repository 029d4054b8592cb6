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
	if t.ended(ctx) {
		return ErrTxEnded
	}
	if len(stmts) != 1 || stmts[0].Dest != nil {
		return t.pgxConn.Send(ctx, stmts...)
	}
	tag, err := t.tx.Exec(ctx, stmts[0].SQL, stmts[0].Args...)
	if err != nil {
		return withoutDetail(err)
	}
	stmts[0].Rows, stmts[0].Done = tag.RowsAffected(), true
	return nil
}

// alive reports whether tx has not ended. An empty batch costs no round trip and asks pgx's own flag.
// Why not tx.Conn().PgConn().TxStatus() alone: after the transaction of a pool ended, its connection serves somebody
// else, and so would the answer.
func alive(ctx context.Context, tx pgx.Tx) bool {
	return tx.SendBatch(ctx, &pgx.Batch{}).Close() == nil
}

func (t *pgxTx) NeedsXID() bool { return false }

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
	case ErrTxEnded:
		return err
	case ErrTxFailed, ErrLost:
		return nil
	}
	ctx, cancel := detached(ctx)
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

// PgxDB is what [FromPgxDB] needs: a pool or a connection, or a wrapper of one. A pgx.Tx has no BeginTx, so it does not fit.
type PgxDB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// FromPgxDB adapts a pool or connection; each transaction is begun with opts.
func FromPgxDB(db PgxDB, opts pgx.TxOptions) DB { return &pgxDB{db, opts} }

type pgxDB struct {
	db   PgxDB
	opts pgx.TxOptions
}

var errNoTx = errors.New("SendBatch gave no transaction for a batch that begins one; a wrapper must pass on BatchResults.Tx")

// errInTx: a BEGIN inside of a transaction is only a warning, and the ROLLBACK after a duplicate would end the caller's.
// And a reservation would not be committed when the call that it is for is made.
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

// FromPgxAlone adapts a pool or connection for statements that are to be committed when Send returns: a connection that is
// in a transaction is refused.
func FromPgxAlone(db PgxDB) Conn { return pgxAlone{pgxConn{db}, db} }

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

func (d *pgxDB) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if PgxInTx(d.db) {
		return nil, errInTx
	}
	b := &pgx.Batch{}
	b.BeginTx(d.opts)
	queue(b, stmts...)
	br := d.db.SendBatch(ctx, b)
	tx := br.Tx()
	err := br.Close()
	if tx == nil {
		if err == nil {
			err = errNoTx
		}
		return nil, err
	}
	own := &pgxOwnTx{pgxTx{pgxConn{tx}, tx}}
	if err != nil {
		own.Rollback(ctx)
		return nil, withoutDetail(err)
	}
	return own, nil
}

type pgxOwnTx struct{ pgxTx }

func (t *pgxOwnTx) Commit(ctx context.Context) error { return withoutDetail(t.tx.Commit(ctx)) }

func (t *pgxOwnTx) Rollback(ctx context.Context) {
	ctx, cancel := detached(ctx)
	defer cancel()
	// Open rows would make the ROLLBACK fail, and pgx then closes the connection: that is the roll back, too. pgx does
	// the same for any other failure, so that there is nothing to do with the error.
	_ = t.tx.Rollback(ctx)
}

func (t *pgxOwnTx) SendAndRollback(ctx context.Context, stmts ...*Stmt) error {
	b := &pgx.Batch{}
	queue(b, stmts...)
	b.Queue("ROLLBACK")
	err := t.tx.SendBatch(ctx, b).Close()
	if err != nil || t.tx.Conn().PgConn().TxStatus() != 'I' {
		t.Rollback(ctx)
		return withoutDetail(err)
	}
	// The server has ended the transaction, and pgx does not know. A Commit with a context that is done sends nothing,
	// marks the pgx.Tx as closed and gives the connection back: no round trip.
	done, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_ = t.tx.Commit(done)
	return nil
}
