package claim

import (
	"errors"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Final is the failure that a key ended in, stored by the call that failed.
type Final struct {
	Value []byte
	Err   error // only in the call that failed
}

func (*Final) Error() string { return "the key ended in a final failure" }

// Failure is an error with the stage at which it came. The front doors give it a type of their own.
type Failure struct {
	Stage         Stage
	Err           error
	Hint          string // what to do, where the engine knows it
	CommitUnknown bool

	// unclear: a statement has failed, or its answer was not had. The row may be in the transaction all the same: a
	// context that ends while database/sql reads the answer fails the call, and not the statement.
	unclear bool

	unsent bool // nothing was sent, and the transaction is as it was
}

// unsent reports whether err is a *Failure of a call that sent nothing.
func unsent(err error) bool {
	f, ok := err.(*Failure)
	return ok && f.unsent
}

func (f *Failure) Error() string {
	if f.Hint != "" {
		return string(f.Stage) + ": " + f.Err.Error() + " (" + f.Hint + ")"
	}
	return string(f.Stage) + ": " + f.Err.Error()
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

// Stage is where in a call an error came.
type Stage string

// The stages, as in package idem.
const (
	StageTable    Stage = "table"
	StageSettings Stage = "settings"
	StageClaim    Stage = "claim"
	StageConfirm  Stage = "confirm"
	StageFn       Stage = "fn"
	StageCommit   Stage = "commit"
	StageLookup   Stage = "lookup"
	StageForget   Stage = "forget"
	StageValue    Stage = "value"
	StageStore    Stage = "store"
	StageReserve  Stage = "reserve"
	StageSend     Stage = "send"
	StageExtend   Stage = "extend"
	StageRelease  Stage = "release"
	StageFail     Stage = "fail"
	StageVoid     Stage = "void"
	StageEnd      Stage = "end"
	StagePending  Stage = "pending"
)

// sent is failed, for the error of a Send of stmts to a caller's transaction, which may not have been sent at all.
func (c *Claim) sent(stage Stage, err error, stmts ...*pg.Stmt) *Failure {
	f := c.failed(stage, err)
	if !stmts[0].Done && pg.Unsent(err) {
		f.unsent, f.unclear = true, false
	}
	return f
}

// failed wraps an error of the server or the connection at stage, and says what to do where the code tells.
func (c *Claim) failed(stage Stage, err error) *Failure { return c.SQL.failed(stage, err) }

func (s SQL) failed(stage Stage, err error) *Failure {
	if errors.Is(err, pg.ErrTxEnded) { // nothing was sent
		return &Failure{
			Stage: stage, Err: pg.ErrTxEnded,
			Hint: "begin one anew: outside of it the key would be committed alone",
		}
	}
	f := &Failure{Stage: stage, Err: err, unclear: true}
	switch pgerr.Code(err) {
	case "42P01", "3F000":
		f.Hint = fmt.Sprintf("table %s: run dedup.Migrate, or dedup.Verify to see what is missing", s.table)
	case "42703", "42P10", "55000":
		f.Hint = fmt.Sprintf("table %s lacks a column or the constraint of the key: dedup.Verify names the statement, "+
			"and dedup.Migrate brings a table of an older version up to date", s.table)
	case "42501":
		f.Hint = fmt.Sprintf("table %s: the role needs SELECT, INSERT, UPDATE and DELETE, and a row security policy that "+
			"lets it see its rows", s.table)
	case "25006":
		f.Hint = "connected to a standby, or the transaction is read only"
	case "23514":
		// A row for which there is no partition. The server reports it as a violated CHECK, of the table and without a name.
		// The code is not passed on: a caller would take it for a value of its own that a CHECK refuses.
		if pgerr.Constraint(err) == "" && pg.ErrorTable(err) == s.name.Table {
			f.Err = errNoPartition
			f.Hint = fmt.Sprintf("table %s: dedup.Table.Maintain makes partitions, and dedup.Verify names what is missing",
				s.table)
		}
	}
	return f
}
