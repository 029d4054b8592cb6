// Package claim is the engine behind idem.Do and idem.Run: it claims a key by inserting its row, says what a row that
// is there already means, and runs the effect in the transaction of the claim. It knows SQL and transactions (package
// pg), no driver, and no exported type of idem: the front doors translate.
package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
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
	Age     time.Duration // Duplicate, and a *Final that was stored: how long ago the original was claimed, by the server's clock
	Value   []byte        // Duplicate: what was stored
}

// What the row of a key that cannot be claimed means. They reach the caller as they are, wrapped in a *Failure.
var (
	ErrInProgress      = errors.New("the key is held by another transaction or a living reservation")
	ErrUnfinished      = errors.New("the key's reservation has run out, and its effect may be half done; Reserve may take it over")
	ErrPayloadMismatch = errors.New("the key was used before with another payload")
	ErrExpired         = errors.New("the key's time lies before the retention window; whether it was processed is no longer known")
	ErrFuture          = errors.New("the key's time lies too far in the future")
	ErrNotFound        = errors.New("no such key")

	errNoPartition = errors.New("the table has no partition for this key")
	errHidden      = errors.New("the key's row can be neither inserted nor read: a trigger, a rule or row security keeps it away; dedup.Verify names it")
	errFixed       = errors.New("the key's row can be read and not changed: a trigger, a rule or row security keeps it as it is")
)

// Final is the failure that a key ended in, stored by the call that failed.
type Final struct {
	Value []byte
	Err   error // only in the call that failed
}

func (*Final) Error() string { return "the key ended in a final failure" }

// Failure is an error with the stage at which it came. The front doors give it a type of their own.
type Failure struct {
	Stage         string
	Err           error
	Hint          string // what to do, where the engine knows it
	CommitUnknown bool

	// unclear: a statement has failed, or its answer was not had. The row may be in the transaction all the same: a
	// context that ends while database/sql reads the answer fails the call, and not the statement.
	unclear bool
}

func (f *Failure) Error() string {
	if f.Hint != "" {
		return f.Stage + ": " + f.Err.Error() + " (" + f.Hint + ")"
	}
	return f.Stage + ": " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// Cause returns Err, with the hint behind its text where there is one.
func (f *Failure) Cause() error {
	if f.Hint == "" {
		return f.Err
	}
	return &hinted{f.Err, f.Hint}
}

type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() + "; " + h.hint }
func (h *hinted) Unwrap() error { return h.err }

// The stages of a call.
const (
	stageClaim   = "claim"
	stageConfirm = "confirm"
	stageFn      = "fn"
	stageCommit  = "commit"
	stageReserve = "reserve"
)

// failed wraps an error of the server or the connection at stage, and says what to do where the code tells.
func (c *Claim) failed(stage string, err error) *Failure {
	f := &Failure{Stage: stage, Err: err, unclear: true}
	switch pgerr.Code(err) {
	case "42P01", "3F000":
		f.Hint = fmt.Sprintf("table %s: run dedup.Migrate, or dedup.Verify to see what is missing", c.SQL.table)
	case "42703", "42P10", "55000":
		f.Hint = fmt.Sprintf("table %s lacks a column or the constraint of the key: dedup.Verify shows what, dedup.Migrate makes it", c.SQL.table)
	case "42501":
		f.Hint = fmt.Sprintf("table %s: the role needs SELECT, INSERT, UPDATE and DELETE, and a row security policy that lets it see its rows", c.SQL.table)
	case "25006":
		f.Hint = "connected to a standby, or the transaction is read only"
	case "23514":
		// A row for which there is no partition. The server reports it as a violated CHECK, of the table and without a name.
		// The code is not passed on: a caller would take it for a value of its own that a CHECK refuses.
		if pgerr.Constraint(err) == "" && pg.ErrorTable(err) == c.SQL.name.Table {
			f.Err = errNoPartition
			f.Hint = fmt.Sprintf("table %s: dedup.Table.Maintain makes partitions, and dedup.Verify names what is missing", c.SQL.table)
		}
	}
	return f
}

// Record is a key's row.
type Record struct {
	PayloadHash, Value     []byte
	Done, Leased           bool // Done: no lease. Leased: a lease that has not run out
	Failed                 bool
	Attempt                int64
	ProcessedAt, AgeMicros int64 // microseconds: since 1970, and before the server's now
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

// insertStmt is the claim as a statement; xid is set where it returns a row.
func (c *Claim) insertStmt(xid *int64) *pg.Stmt {
	var hash any
	if c.PayloadHash != nil {
		hash = c.PayloadHash
	}
	s := &pg.Stmt{SQL: c.SQL.insert, Args: []any{c.Source, c.Operation, c.Key, hash}}
	if c.Timed {
		s.SQL = c.SQL.insertTimed
		s.Args = append(s.Args, c.At, c.Retention.Microseconds(), c.Skew.Microseconds())
	}
	if xid != nil {
		s.SQL = c.SQL.insertXID
		if c.Timed {
			s.SQL = c.SQL.insertTimedXID
		}
		s.Dest = []any{xid}
	}
	return s
}

func (c *Claim) readStmt(r *Record) *pg.Stmt {
	return &pg.Stmt{
		SQL: c.SQL.read, Args: c.args(),
		Dest: []any{
			(*hexed)(&r.PayloadHash), (*hexed)(&r.Value), &r.Done, &r.Leased, &r.Failed, &r.Attempt, &r.ProcessedAt, &r.AgeMicros,
		},
	}
}

// met is what a claim that inserted nothing finds: the statements of its second look, and what they mean.
type met struct {
	read, window, own          *pg.Stmt
	record                     Record
	isExpired, isFuture, isOwn bool
}

// look prepares the second look; ownXID, where not 0, is the transaction whose row would be this call's own.
func (c *Claim) look(ownXID int64) *met {
	m := &met{}
	m.read = c.readStmt(&m.record)
	if c.Timed {
		m.window = &pg.Stmt{
			SQL: pinnedWindow, Args: []any{c.At, c.Retention.Microseconds(), c.Skew.Microseconds()}, Dest: []any{&m.isExpired, &m.isFuture},
		}
	}
	if ownXID != 0 {
		m.own = &pg.Stmt{SQL: c.SQL.own, Args: c.args(ownXID), Dest: []any{&m.isOwn}}
	}
	return m
}

func (m *met) stmts() []*pg.Stmt {
	stmts := []*pg.Stmt{m.read}
	if m.window != nil {
		stmts = append(stmts, m.window)
	}
	if m.own != nil {
		stmts = append(stmts, m.own)
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
	case m.isOwn:
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
		return Record{}, c.failed("lookup", err)
	}
	if stmt.Rows == 0 {
		return Record{}, &Failure{Stage: "lookup", Err: ErrNotFound}
	}
	return r, nil
}

// Store keeps a value in the key's row, in the transaction that claimed it.
func (c *Claim) Store(ctx context.Context, conn pg.Conn, value []byte) error {
	s := &pg.Stmt{SQL: c.SQL.store, Args: c.args(value)}
	if err := conn.Send(ctx, s); err != nil {
		return c.failed("store", err)
	}
	if s.Rows != 1 {
		return &Failure{Stage: "store", Err: ErrNotFound}
	}
	return nil
}

// Forget deletes the key's row in the caller's transaction.
func (c *Claim) Forget(ctx context.Context, conn pg.Conn) error {
	del := &pg.Stmt{SQL: c.SQL.forget, Args: c.args()}
	if err := conn.Send(ctx, del); err != nil {
		return c.failed("forget", err)
	}
	if del.Rows == 1 {
		return nil
	}
	r, err := c.Lookup(ctx, conn)
	switch {
	case err != nil:
		return err
	case r.Leased:
		return &Failure{Stage: "forget", Err: ErrInProgress}
	}
	return &Failure{Stage: "forget", Err: ErrUnfinished}
}
