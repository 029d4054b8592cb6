// Package claim is the engine behind idem.Do and idem.Run: it claims a key by inserting its row, says what a row that
// is there already means, and runs the effect in the transaction of the claim. It knows SQL and transactions (package
// pg), no driver, and no exported type of idem: the front doors translate.
package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Claim is one call: the key and how it is to be claimed.
type Claim struct {
	SQL SQL

	Source, Operation, Key string

	PayloadHash []byte // nil: none

	Timed     bool
	At        int64 // where Timed: the key's own time, microseconds since 1970
	Retention time.Duration
	Skew      time.Duration // how far At may lie in the future

	MaxWait time.Duration // 0: as long as the context and the server allow
	Tries   int           // Run only

	MaxValue int // the most bytes that are stored with a key; 0: as many as the table takes

	// Value, where not nil, gets what is stored with a duplicate's key. Its error becomes the call's.
	Value func([]byte) error

	// Tell, where not nil, is told once what became of the call.
	Tell func(context.Context, Result, error)

	claimedAt int64 // where the claim withdraws: the row's creation, microseconds since 1970

	token *int64 // of the row that this call has claimed or confirmed last, as the server returned it
}

// newToken returns the token of a claim: a random number, not 0, for each transaction that it is made in. The row
// that holds it is this call's own. Why not the transaction's id: not every server has one, and a failover may give
// it out again.
//
// mark: the transaction is to be marked by it, and the server counts in its lower bits.
func newToken(mark bool) int64 {
	for {
		token := int64(rand.Uint64())
		if mark {
			return token &^ pg.MarkCount
		}
		if token != 0 {
			return token
		}
	}
}

// Told makes a call, and tells of it, from a deferred function: so that a panic of fn, which passes through, is told,
// too.
func (c *Claim) Told(ctx context.Context, call func() (Result, error)) (res Result, err error) {
	if c.Tell != nil {
		err = errPanic
		defer func() { c.Tell(ctx, res, err) }()
	}
	res, err = call()
	if err == nil && res.Outcome == Duplicate && c.Value != nil {
		err = c.Value(res.Value)
	}
	if err != nil {
		res.Outcome = 0
	}
	return res, err
}

// Refused tells of a call that was refused with err before any SQL, and returns err.
func (c *Claim) Refused(ctx context.Context, err error) error {
	_, err = c.Told(ctx, func() (Result, error) { return Result{}, err })
	return err
}

// Outcome says whether the effect ran in this call.
type Outcome uint8

// The outcomes, as in package idem.
const (
	Executed  Outcome = 1
	Duplicate Outcome = 2
)

// Result is what a call reports besides its error.
type Result struct {
	Outcome Outcome
	Waited  time.Duration // claiming: the statements' time, which is mostly the wait for another holder
	Held    time.Duration // from the claim's success to the end of the call
	// Duplicate, and a *Final that was stored: how long ago the original was claimed, by the server's clock
	Age   time.Duration
	Value []byte // Duplicate: what was stored
}

// What the row of a key that cannot be claimed means. They reach the caller as they are, wrapped in a *Failure.
var (
	ErrInProgress = errors.New("the key is held by another transaction or a living reservation")
	ErrUnfinished = errors.New("the key's reservation has run out, and its effect may be half done; Reserve may " +
		"take it over")
	ErrPayloadMismatch = errors.New("the key was used before with another payload")
	ErrExpired         = errors.New("the key's time lies before the retention window; whether it was processed is no " +
		"longer known")
	ErrFuture   = errors.New("the key's time lies too far in the future")
	ErrNotFound = errors.New("no such key")
	ErrNested   = errors.New("the call was made inside of the fn of its own key, which has not returned")

	errPanic       = errors.New("fn has panicked, or ended its goroutine")
	errNoPartition = errors.New("the table has no partition for this key")
	errHidden      = errors.New("the key's row can be neither inserted nor read: a trigger, a rule or row security " +
		"keeps it away; dedup.Verify names it")
	errNoToken   = errors.New("the row that was written has no token: a trigger changes it; dedup.Verify names it")
	errClaimGone = errors.New("the row that this call has claimed is not there")
	errFixed     = errors.New("the key's row can be read and not changed: a trigger, a rule or row security keeps it " +
		"as it is")
)

// Record is a key's row.
type Record struct {
	PayloadHash, Value     []byte
	Done, Leased           bool // Done: no lease. Leased: a lease that has not run out
	Failed                 bool
	Attempt                int64
	Token                  *int64 // of who claimed, took over or confirmed; nil: an older version of the library
	ProcessedAt, AgeMicros int64  // microseconds: since 1970, and before the server's now
}

// State is where a key stands.
type State uint8

// The states, as in package idem.
const (
	Done          State = 1
	Reserved      State = 2
	Unfinished    State = 3
	FinallyFailed State = 4
)

// holds reports whether the row was written by the transaction of this token.
func (r *Record) holds(token *int64) bool {
	return token != nil && r.Token != nil && *r.Token == *token
}

// State returns where the key stands.
func (r *Record) State() State {
	switch {
	case r.Leased:
		return Reserved
	case !r.Done:
		return Unfinished
	case r.Failed:
		return FinallyFailed
	}
	return Done
}

// hexed scans bytes from their hex text, and NULL as nil.
type hexed []byte

// Scan implements sql.Scanner, which pgx heeds as well.
func (h *hexed) Scan(src any) (err error) {
	switch src := src.(type) {
	case nil:
		*h = nil
	case string:
		*h, err = hex.DecodeString(src)
	case []byte:
		*h, err = hex.DecodeString(string(src))
	default:
		err = fmt.Errorf("cannot scan a %T as hex", src)
	}
	return err
}

func (c *Claim) key() []any { return []any{c.Source, c.Operation, c.Key} }

// insertStmt is the claim as a statement, with a new token. mark has it mark the transaction, too.
func (c *Claim) insertStmt(mark bool) *pg.Stmt {
	var hash any
	if c.PayloadHash != nil {
		hash = c.PayloadHash
	}
	c.token = nil
	s := &pg.Stmt{SQL: c.SQL.text[stmtInsert], Args: []any{c.Source, c.Operation, c.Key, hash}, Dest: []any{&c.token}}
	switch {
	case c.Timed && mark:
		s.SQL = c.SQL.text[stmtInsertTimedMarked]
	case c.Timed:
		s.SQL = c.SQL.text[stmtInsertTimed]
	case mark:
		s.SQL = c.SQL.text[stmtInsertMarked]
	}
	switch {
	case c.withdraws():
		s.Dest = append(s.Dest, &c.claimedAt)
	case c.Timed:
		s.Args = append(s.Args, c.At, c.Retention.Microseconds(), c.Skew.Microseconds())
	}
	s.Args = append(s.Args, newToken(mark))
	return s
}

// wrote reports whether s, which returns a token, has written the row: the row that came back is the proof.
func (c *Claim) wrote(stage Stage, s *pg.Stmt) (bool, error) {
	if s.Rows == 0 {
		return false, nil
	}
	if c.token == nil {
		return false, &Failure{Stage: stage, Err: errNoToken, unclear: true}
	}
	return true, nil
}

func (c *Claim) readStmt(r *Record) *pg.Stmt {
	return &pg.Stmt{
		SQL: c.SQL.text[stmtRead], Args: c.args(), Dest: r.dest(),
	}
}

// dest are the places for the columns of readSQL.
func (r *Record) dest() []any {
	return []any{
		(*hexed)(&r.PayloadHash), (*hexed)(&r.Value), &r.Done, &r.Leased, &r.Failed, &r.Attempt, &r.Token,
		&r.ProcessedAt, &r.AgeMicros,
	}
}

// met is what a claim that inserted nothing finds: the statements of its second look, and what they mean.
type met struct {
	read, window        *pg.Stmt
	record              Record
	isExpired, isFuture bool
	own                 *int64 // the token of the row that would be this call's own; nil: none would
}

// look prepares the second look. lost, where not nil, is the token of a try whose COMMIT was not answered.
func (c *Claim) look(lost *int64) *met {
	m := &met{own: lost}
	m.read = c.readStmt(&m.record)
	if c.Timed {
		m.window = &pg.Stmt{
			SQL: pinnedWindow, Args: []any{c.At, c.Retention.Microseconds(), c.Skew.Microseconds()},
			Dest: []any{&m.isExpired, &m.isFuture},
		}
	}
	return m
}

func (m *met) stmts() []*pg.Stmt {
	stmts := []*pg.Stmt{m.read}
	if m.window != nil {
		stmts = append(stmts, m.window)
	}
	return stmts
}

// errAgain says that there was no row after all: it went away between the two statements.
var errAgain = errors.New("claim again")

// verdict says what the row means for this call.
func (c *Claim) verdict(m *met) (Result, error) {
	r := &m.record
	age := time.Duration(r.AgeMicros) * time.Microsecond
	if m.read.Rows == 0 {
		switch {
		case m.isExpired:
			return Result{}, ErrExpired
		case m.isFuture:
			return Result{}, ErrFuture
		}
		return Result{}, errAgain
	}
	switch {
	case r.holds(m.own):
		return Result{Outcome: Executed}, nil
	case c.PayloadHash != nil && r.PayloadHash != nil && string(c.PayloadHash) != string(r.PayloadHash):
		return Result{}, ErrPayloadMismatch
	case r.Leased:
		return Result{}, ErrInProgress
	case !r.Done:
		return Result{}, ErrUnfinished
	case r.Failed:
		return Result{Age: age}, &Final{Value: r.Value}
	}
	return Result{Outcome: Duplicate, Age: age, Value: r.Value}, nil
}

// Lookup reads the key's row, in one statement. It returns ErrNotFound where there is none.
func (c *Claim) Lookup(ctx context.Context, conn pg.Conn) (Record, error) {
	var r Record
	stmt := c.readStmt(&r)
	if err := conn.Send(ctx, stmt); err != nil {
		return Record{}, c.failed(StageLookup, err)
	}
	if stmt.Rows == 0 {
		return Record{}, &Failure{Stage: StageLookup, Err: ErrNotFound}
	}
	return r, nil
}

// fits refuses a value that is too large.
func (c *Claim) fits(value []byte) error {
	if c.MaxValue > 0 && len(value) > c.MaxValue {
		return &Failure{Stage: StageValue, Err: fmt.Errorf("the value is larger than %d bytes", c.MaxValue)}
	}
	return nil
}

// Store keeps a value in the row that c has claimed, in the transaction that claimed it, and in no other row.
func (c *Claim) Store(ctx context.Context, conn pg.Conn, value []byte) error {
	if err := c.fits(value); err != nil {
		return err
	}
	if c.token == nil {
		return &Failure{Stage: StageStore, Err: errClaimGone}
	}
	var token int64
	s := &pg.Stmt{SQL: c.SQL.text[stmtStore], Args: c.args(value, *c.token), Dest: []any{&token}}
	if err := conn.Send(ctx, s); err != nil {
		return c.failed(StageStore, err)
	}
	if s.Rows != 1 {
		return &Failure{
			Stage: StageStore, Err: errClaimGone,
			Hint: "fn deleted it, ended the transaction or rolled it back to a savepoint older than the claim, or " + c.astray(),
		}
	}
	return nil
}

// astray says how a row can be out of sight that is there.
func (c *Claim) astray() string {
	return fmt.Sprintf("the search path has come to lead %s to another table: name the table with its schema", c.SQL.table)
}

// Forget deletes the key's row in the caller's transaction.
func (c *Claim) Forget(ctx context.Context, conn pg.Conn) error {
	if err := c.outside(ctx, StageForget); err != nil {
		return err
	}
	var attempt int64
	del := &pg.Stmt{SQL: c.SQL.text[stmtForget], Args: c.args(), Dest: []any{&attempt}}
	if err := conn.Send(ctx, del); err != nil {
		return c.failed(StageForget, err)
	}
	if del.Rows == 1 {
		return nil
	}
	r, err := c.Lookup(ctx, conn)
	switch {
	case err != nil:
		return err
	case r.Leased:
		return &Failure{Stage: StageForget, Err: ErrInProgress}
	}
	return &Failure{Stage: StageForget, Err: ErrUnfinished}
}
