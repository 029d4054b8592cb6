package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Whole are effects that travel together with what goes before them: one transaction, in one round trip.
type Whole interface {
	// Send sends stmts, then the effects, and commits. The last of stmts proves that the effects may happen: it fails
	// with [NotNew] where they may not. Then Send asks otherwise for more, sends that, where it is any, in a second round
	// trip, and reports false.
	Send(ctx context.Context, stmts []*Stmt, otherwise func() []*Stmt) (committed bool, broken *Broken)

	// SendIn sends the effects in a transaction that somebody else commits. Its errors are the effects' own.
	SendIn(ctx context.Context, tx Tx) error
}

// NotNew is the SQLSTATE, invalid_text_representation, with which a statement refuses what goes behind it. What it
// cannot read is a text that says why.
const NotNew = "22P02"

// Broken is how a [Whole.Send] failed.
type Broken struct {
	Err    error
	At     Place
	Stmt   *Stmt // of stmts, where it was one of them
	Unsent bool  // nothing of the transaction was sent
	Undone bool  // it was not sent, or the server has rolled it back; AtCommit, only the error itself can tell
}

// Place is where a [Whole.Send] failed.
type Place uint8

// The places of a [Broken].
const (
	AtClaim   Place = iota + 1 // in stmts, or before them
	AtEffect                   // the error is the effect's own
	AtCommit                   //
	AtConfirm                  // in otherwise
)

var (
	// ErrOptions: what a [Whole] cannot be begun with.
	ErrOptions = errors.New("an Apply begins no transaction by BEGIN: leave BeginQuery and CommitQuery empty, and take " +
		"pgx's own names of levels and modes")

	errNoEffects = errors.New("the batch of effects is empty")
	errCallback  = errors.New("an effect has a callback, whose error could undo nothing; use Run to look at results " +
		"before COMMIT")
)

// NewPgxWhole checks the effects, and keeps them as they are. Of db, lend and opts see [FromPgxLender].
func NewPgxWhole(db PgxDB, lend Lend, opts pgx.TxOptions, effects *pgx.Batch) (Whole, error) {
	w := &pgxWhole{db: db, lend: lend}
	var err error
	if w.settings, err = wholeSettings(opts); err != nil {
		return nil, err
	}
	if effects == nil || effects.Len() == 0 {
		return nil, errNoEffects
	}
	for i, q := range effects.QueuedQueries {
		if q.Fn != nil {
			err = errCallback
		} else {
			err = checkEffect(q.SQL)
		}
		if err != nil {
			return nil, atEffect(i, err)
		}
		e := effect{sql: q.SQL, args: q.Arguments}
		for len(e.args) > 0 {
			inner, ok := e.args[0].(pgx.QueryRewriter)
			if !ok {
				break
			}
			e.inner, e.args = inner, e.args[1:]
		}
		w.effects = append(w.effects, e)
	}
	return w, nil
}

func atEffect(i int, err error) error { return fmt.Errorf("effect %d of the batch: %w", i, err) }

// wholeSettings are the statements that begin a transaction with opts where it has no BEGIN. Each setting ends with the
// transaction. Why not SET TRANSACTION, nor SET LOCAL: they warn where there is no BEGIN, and the warning is in the
// log.
func wholeSettings(opts pgx.TxOptions) ([]string, error) {
	var all []string
	for _, o := range []struct {
		given string
		known map[string]string
	}{
		{string(opts.IsoLevel), map[string]string{
			"serializable":     `transaction_isolation = 'serializable'`,
			"repeatable read":  `transaction_isolation = 'repeatable read'`,
			"read committed":   `transaction_isolation = 'read committed'`,
			"read uncommitted": `transaction_isolation = 'read uncommitted'`,
		}},
		{string(opts.AccessMode), map[string]string{
			"read write": `transaction_read_only = off`,
			"read only":  `transaction_read_only = on`,
		}},
		{string(opts.DeferrableMode), map[string]string{
			"deferrable":     `transaction_deferrable = on`,
			"not deferrable": `transaction_deferrable = off`,
		}},
		{opts.BeginQuery, nil},
		{opts.CommitQuery, nil},
	} {
		if o.given == "" {
			continue
		}
		set, ok := o.known[o.given]
		if !ok {
			return nil, ErrOptions
		}
		all = append(all, `SET `+set)
	}
	return all, nil
}

// pgxWhole has no BEGIN and no COMMIT: what travels up to one Sync is one transaction, which the server rolls back by
// itself where a part of it fails. So a duplicate leaves nothing behind that would have to be ended.
type pgxWhole struct {
	db       PgxDB
	lend     Lend
	settings []string
	effects  []effect
}

func (w *pgxWhole) SendIn(ctx context.Context, tx Tx) error {
	b := &pgx.Batch{}
	w.queue(b, false)
	br := PgxOf(tx).SendBatch(ctx, b)
	for i := range b.Len() {
		if _, err := br.Exec(); err != nil {
			_ = br.Close()
			return atEffect(i, err)
		}
	}
	return br.Close()
}

// queue adds the effects to b. Each try has copies: pgx writes into what it sends, and what it writes belongs to one
// connection.
func (w *pgxWhole) queue(b *pgx.Batch, ends bool) {
	for i, e := range w.effects {
		e.ends = ends && i == len(w.effects)-1
		if e.inner == nil && !e.ends {
			b.Queue(e.sql, e.args...)
			continue
		}
		b.Queue(e.sql, append([]any{e}, e.args...)...)
	}
}

func (w *pgxWhole) Send(
	ctx context.Context, stmts []*Stmt, otherwise func() []*Stmt,
) (committed bool, broken *Broken) {
	db := w.db
	if w.lend != nil {
		lent, back, err := w.lend(ctx)
		if err != nil {
			return false, &Broken{Err: err, At: AtClaim, Unsent: true, Undone: true}
		}
		defer back()
		db = lent
	}
	broken = w.send(ctx, db, stmts)
	if broken == nil {
		return true, nil
	}
	if !notNew(broken, stmts) {
		return false, broken
	}
	if more := otherwise(); len(more) > 0 {
		if err := FromPgx(db).Send(ctx, more...); err != nil {
			return false, &Broken{Err: err, At: AtConfirm, Undone: true}
		}
	}
	return false, nil
}

// send is the first round trip.
func (w *pgxWhole) send(ctx context.Context, db PgxDB, stmts []*Stmt) (broken *Broken) {
	b, at := &pgx.Batch{}, &reached{}
	for _, s := range w.settings {
		b.Queue(s)
	}
	for _, s := range stmts {
		b.Queue(s.SQL, s.Args...)
	}
	b.QueuedQueries[0].Arguments = append([]any{at}, b.QueuedQueries[0].Arguments...)
	own := b.Len()
	w.queue(b, true)

	read := false
	defer func() {
		if !read { // a panic in an argument's own code, which leaves the connection busy
			at.close(ctx)
		}
	}()
	br := db.SendBatch(ctx, b)
	for i := range b.Len() {
		if err := result(br, i-len(w.settings), stmts); err != nil {
			broken, i = at.broken(i, err, b.QueuedQueries)
			switch {
			case i == nowhere:
				broken.At = AtEffect
			case i >= own:
				broken.At, broken.Err = AtEffect, atEffect(i-own, broken.Err)
			default:
				broken.At, broken.Err = AtClaim, WithoutDetail(broken.Err)
				if i >= len(w.settings) {
					broken.Stmt = stmts[i-len(w.settings)]
				}
			}
			break
		}
	}
	if notNew(broken, stmts) {
		// pgx drops every statement of a batch that failed from its cache. These are as good as they were, and without them
		// a duplicate, and what comes after it, would cost round trips to prepare them anew.
		b.QueuedQueries = nil
	}
	read = true
	if err := br.Close(); err != nil && broken == nil {
		broken = &Broken{Err: WithoutDetail(err), At: AtCommit}
	}
	return broken
}

// result takes the n-th result, whose rows are read where stmts has places for them.
func result(br pgx.BatchResults, n int, stmts []*Stmt) error {
	if n < 0 || n >= len(stmts) || stmts[n].Dest == nil {
		_, err := br.Exec()
		return err
	}
	rows, err := br.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	return stmts[n].read(rows)
}

// notNew reports whether the last of stmts has refused what goes behind it.
func notNew(e *Broken, stmts []*Stmt) bool {
	return e != nil && e.Stmt == stmts[len(stmts)-1] && e.Undone && !e.Unsent && sqlState(e.Err) == NotNew
}

// reached learns which connection a batch has reached, before anything of it is sent.
type reached struct{ conn *pgx.Conn }

// RewriteQuery implements pgx.QueryRewriter.
func (r *reached) RewriteQuery(_ context.Context, conn *pgx.Conn, sql string, args []any) (string, []any, error) {
	r.conn = conn
	if conn.PgConn().TxStatus() != 'I' {
		return "", nil, errInTx
	}
	return sql, args, nil
}

func (r *reached) close(ctx context.Context) {
	if r.conn == nil {
		return
	}
	ctx, cancel := Detached(ctx)
	defer cancel()
	_ = r.conn.Close(ctx)
}

// nowhere is the place of an error that names no statement.
const nowhere = -1

// broken says what err means, which came instead of the n-th result, and where it belongs. It is called before the
// connection is given back.
func (r *reached) broken(n int, err error, sent []*pgx.QueuedQuery) (*Broken, int) {
	var server *pgconn.PgError
	var early pgx.ErrPreprocessingBatch
	answered := errors.As(err, &server)
	unsent := &Broken{Err: err, Unsent: true, Undone: true}
	switch {
	case errors.Is(err, errInTx):
		unsent.Err = errInTx
		return unsent, 0
	case r.conn == nil, n == 0 && pgconn.SafeToRetry(err): // no connection was had, or none that is free
		return unsent, 0
	case errors.As(err, &early): // while the statements were prepared
		return unsent, slices.IndexFunc(sent, func(q *pgx.QueuedQuery) bool { return q.SQL == early.SQL() })
	case n == 0 && !answered && !r.conn.IsClosed():
		// What could not be encoded, which an effect's own arguments can say alone. Everything else that is no answer of the
		// server's closes the connection.
		return unsent, nowhere
	}
	return &Broken{Err: err, Undone: answered && server.SeverityUnlocalized == "ERROR"}, n
}
