package pgerr

import (
	"context"
	"database/sql/driver"
	"io"
	"net"
	"reflect"

	pgconn4 "github.com/jackc/pgconn"
	"github.com/jackc/pgx/v5/pgconn"
)

// serverError is what a driver tells of an error that the server sent.
type serverError struct {
	code       string
	schema     string
	constraint string

	severity string // ERROR, FATAL, PANIC: the field that the server never translates; "" where the driver drops it
	label    string // the severity in the language of lc_messages

	again bool // an error that wraps it says that it may pass
}

// class returns the first two characters of the code.
func (e serverError) class() string { return e.code[:min(2, len(e.code))] }

// findings is what a tree of wrapped and joined errors holds.
type findings struct {
	server   []serverError // in the order in which errors.As comes to them
	canceled bool          // a context was done
	lost     bool          // a connection was lost, refused or never used

	commitAnswered bool // an error with a method CommitUnknown has spoken,
	commitUnknown  bool // and this is what it said
}

// inspect reads the whole tree below err.
//
// Why not errors.As, which stops at the first match: errors.Join(duplicate, outOfDisk) would then be a duplicate, and
// the second message of the two lost.
func inspect(err error) findings {
	var f findings
	f.add(err, false)
	return f
}

// add reads err and what it wraps. connecting says that it comes from an attempt to connect.
func (f *findings) add(err error, connecting bool) {
	// A nil pointer that became an error is a bug of the caller's, but must not panic in the handling of another one.
	if v := reflect.ValueOf(err); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return
	}
	if e, ok := err.(interface{ CommitUnknown() bool }); ok {
		f.commitAnswered = true
		f.commitUnknown = f.commitUnknown || e.CommitUnknown()
	}
	if e, ok := fromDriver(err); ok {
		f.server = append(f.server, e)
		return
	}
	f.addLocal(err, connecting)
	if _, ok := err.(*pgconn.ConnectError); ok {
		connecting = true
	}

	var below findings
	for _, cause := range causes(err) {
		below.add(cause, connecting)
	}
	if e, ok := err.(interface{ SQLState() string }); ok && !below.repeats(e.SQLState()) {
		f.server = append(f.server, serverError{code: e.SQLState()})
	}
	if e, ok := err.(interface{ Retryable() bool }); ok && e.Retryable() {
		for i := range below.server {
			below.server[i].again = true
		}
	}
	f.server = append(f.server, below.server...)
	f.canceled = f.canceled || below.canceled
	f.lost = f.lost || below.lost
	f.commitAnswered = f.commitAnswered || below.commitAnswered
	f.commitUnknown = f.commitUnknown || below.commitUnknown
}

// addLocal notes what err itself, without its causes, says about contexts and connections.
func (f *findings) addLocal(err error, connecting bool) {
	// Why == and not errors.Is: errors.Is would look at the causes, which are read one by one anyway.
	switch err {
	case context.Canceled:
		f.canceled = true
	case context.DeadlineExceeded:
		// The driver makes a context of its own for connect_timeout, and its end looks like that of the caller's.
		f.canceled = f.canceled || !connecting
	case driver.ErrBadConn, pgconn.ErrConnClosed, io.ErrUnexpectedEOF, io.EOF:
		f.lost = true
	}
	switch e := err.(type) {
	case *pgconn.ConnectError, *net.OpError, *net.DNSError:
		// Why not net.Error, the interface: syscall.Errno implements it, so that a missing file would count.
		f.lost = true
	case interface{ SafeToRetry() bool }:
		f.lost = f.lost || e.SafeToRetry()
	case interface{ Is(error) bool }:
		// A dial that the caller's context ended: net has an error of its own for that.
		f.canceled = f.canceled || e.Is(context.Canceled)
	}
}

// unclear reports whether something besides the server's answer went wrong.
func (f *findings) unclear() bool { return f.canceled || f.lost }

// repeats reports whether an error that wraps these, and has this SQLSTATE, tells nothing new by it.
func (f *findings) repeats(code string) bool {
	if code == "" {
		return true
	}
	for _, e := range f.server {
		if e.code != code {
			return false
		}
	}
	return len(f.server) > 0
}

// causes returns what err wraps.
func causes(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// fielded is *pq.Error of lib/pq. It keeps the constraint in a field of the struct, and this package must not import
// the driver to reach it; Get takes the letters of the protocol's error fields.
type fielded interface {
	SQLState() string
	Get(field byte) string
}

// fromDriver reads an error of a driver that tells the constraint's name. It does not look at what err wraps, unless
// err has a method As.
func fromDriver(err error) (serverError, bool) {
	switch e := err.(type) {
	case *pgconn.PgError:
		return fromV5(e)
	case *pgconn4.PgError:
		return fromV4(e)
	case fielded:
		return fromFields(e)
	case interface{ As(any) bool }:
		var v5 *pgconn.PgError
		if e.As(&v5) && v5 != nil {
			return fromV5(v5)
		}
		var v4 *pgconn4.PgError
		if e.As(&v4) && v4 != nil {
			return fromV4(v4)
		}
		var fields fielded
		if e.As(&fields) && fields != nil {
			return fromFields(fields)
		}
	}
	return serverError{}, false
}

func fromV5(e *pgconn.PgError) (serverError, bool) {
	return serverError{
		code: e.Code, schema: e.SchemaName, constraint: e.ConstraintName,
		severity: e.SeverityUnlocalized, label: e.Severity,
	}, e.Code != ""
}

func fromV4(e *pgconn4.PgError) (serverError, bool) {
	return serverError{
		code: e.Code, schema: e.SchemaName, constraint: e.ConstraintName, label: e.Severity,
	}, e.Code != ""
}

func fromFields(e fielded) (serverError, bool) {
	return serverError{
		code: e.SQLState(), schema: e.Get('s'), constraint: e.Get('n'), label: e.Get('S'),
	}, e.SQLState() != ""
}
