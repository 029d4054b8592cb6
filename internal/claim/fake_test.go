package claim

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

// A database that answers as a test says, and needs no server. It knows a claim by its first word, and the read of a
// row by asking the engine for one: what the statements say, and which columns they return, may change without it.

// turn is one transaction.
type turn struct {
	begin error // there is no connection, or the claim fails

	free bool    // the claim inserts a row
	id   int64   // its token: what the claim returns
	row  *Record // what the read finds; nil: no row
	own  bool    // the row found holds the token of the COMMIT that was lost
	read error   // the read fails

	expired bool // the key's time has passed out of the window

	fails  map[string]error // statements by their first words ("ROLLBACK TO"), each once
	slow   time.Duration    // a failing statement takes so long
	check  error            // what has become of the transaction
	fail   error            // what Fail finds
	commit error
}

// each are the errors of a statement that fails more than once, in order; nil: that time it does not.
type each []error

func (each) Error() string { return "" }

// fakeDB gives out transactions in order. A test that begins more of them than were scripted fails.
type fakeDB struct {
	t     *testing.T
	claim *Claim
	turns []turn
	log   []string // what was sent, by its first word, and what was done
}

func (db *fakeDB) Begin(ctx context.Context, stmts ...*pg.Stmt) (pg.OwnTx, error) {
	db.log = append(db.log, "BEGIN")
	require.NotEmpty(db.t, db.turns, "one transaction too many: %v", db.log)
	tx := &fakeTx{db: db, turn: db.turns[0]}
	db.turns = db.turns[1:]
	if tx.begin != nil {
		return nil, tx.begin
	}
	if err := tx.Send(ctx, stmts...); err != nil {
		return nil, err
	}
	return tx, nil
}

// fakeTx is one of them, or a caller's.
type fakeTx struct {
	turn
	db        *fakeDB
	needsMark bool
	over      bool // it was committed or rolled back
}

func (tx *fakeTx) Send(_ context.Context, stmts ...*pg.Stmt) error {
	require.False(tx.db.t, tx.over, "a statement in a transaction that is over: %v", tx.db.log)
	for _, s := range stmts {
		if err := tx.answer(s); err != nil {
			return err
		}
		s.Done = true
	}
	return nil
}

// answer does what the script says about one statement.
func (tx *fakeTx) answer(s *pg.Stmt) error {
	words := strings.Fields(s.SQL)
	tx.db.log = append(tx.db.log, words[0])
	for start, err := range tx.fails {
		if strings.HasPrefix(strings.Join(words, " "), start) {
			delete(tx.fails, start)
			if each, ok := err.(each); ok {
				if err = each[0]; len(each) > 1 {
					tx.fails[start] = each[1:]
				}
			}
			if err == nil {
				break
			}
			time.Sleep(tx.slow)
			return err
		}
	}
	var found Record
	if tx.row != nil {
		found = *tx.row
	}
	if tx.own {
		found.Token = &tx.id
	}
	read := tx.db.claim.readStmt(&found)
	switch {
	case words[0] == "INSERT" && tx.free, words[0] == "UPDATE" && tx.free:
		s.Rows = 1
		for _, d := range s.Dest {
			set(d, tx.id)
			set(d, &tx.id)
		}
	case words[0] == "INSERT", words[0] == "UPDATE":
	case s.SQL == read.SQL && tx.read != nil:
		return tx.read
	case s.SQL == read.SQL && tx.row != nil:
		s.Rows = 1
		for i := range s.Dest {
			reflect.ValueOf(s.Dest[i]).Elem().Set(reflect.ValueOf(read.Dest[i]).Elem())
		}
	case s.SQL == read.SQL:
	case s.SQL == pinnedWindow:
		s.Rows = 1
		set(s.Dest[0], tx.expired)
	default: // a setting
		s.Rows = 1
	}
	return nil
}

// set gives a destination a value, where it is of that kind.
func set(dest, value any) {
	if d, v := reflect.ValueOf(dest).Elem(), reflect.ValueOf(value); d.Type() == v.Type() {
		d.Set(v)
	}
}

func (tx *fakeTx) Query(context.Context, string, []any, func(func(...any) error) error) error {
	tx.db.t.Fatal("Query is not scripted")
	return nil
}

func (tx *fakeTx) NeedsMark() bool { return tx.needsMark }

func (*fakeDB) NeedsMark() bool { return false }

func (tx *fakeTx) Check(context.Context, int64) error { return tx.check }

func (tx *fakeTx) Fail(context.Context) error {
	tx.db.log = append(tx.db.log, "fail")
	return tx.fail
}

func (tx *fakeTx) Commit(context.Context) error {
	tx.end("COMMIT")
	return tx.commit
}

func (tx *fakeTx) Rollback(context.Context) error {
	tx.end("ROLLBACK")
	return nil
}

func (tx *fakeTx) SendAndRollback(ctx context.Context, stmts ...*pg.Stmt) error {
	defer tx.end("ROLLBACK")
	return tx.Send(ctx, stmts...)
}

func (tx *fakeTx) end(how string) {
	tx.db.log = append(tx.db.log, how)
	require.False(tx.db.t, tx.over, "ended twice: %v", tx.db.log)
	tx.over = true
}

// The errors of the scripts. A lost connection leaves open what has become of a COMMIT.
var (
	errGone    = io.ErrUnexpectedEOF
	errSerial  = &pgconn.PgError{Severity: "ERROR", Code: "40001"}
	errTimeout = &pgconn.PgError{Severity: "ERROR", Code: "57014"}
	errLocked  = &pgconn.PgError{Severity: "ERROR", Code: "55P03"}
	errCheck   = &pgconn.PgError{Severity: "ERROR", Code: "23514", ConstraintName: "positive"}
)

// fakeClaim is a claim on the default table.
func fakeClaim(t *testing.T) *Claim {
	t.Helper()
	sql, err := For("", false, false)
	require.NoError(t, err)
	return &Claim{SQL: sql, Source: "s", Operation: "o", Key: "k", Tries: 3}
}

func done() *Record { return &Record{Done: true, Attempt: 1} }
