package front

import (
	"errors"

	"github.com/pgonce/pgonce/internal/claim"
)

// Types are how a front door makes its errors.
type Types struct {
	Fault   func(*KeyFault) error                     // of a key that the table does not take
	Final   func(*claim.Final) error                  // of a key that ended in a final failure
	Failure func(f *claim.Failure, cause error) error // of everything else, and around Final's
}

// Translate gives the engine's failures the types of a front door. The effect's own errors pass as they are.
func Translate(err error, as Types) error {
	f, ok := err.(*claim.Failure)
	if !ok {
		return err
	}
	var fault *KeyFault
	if errors.As(f.Err, &fault) {
		return as.Fault(fault)
	}
	cause := f.Cause()
	var final *claim.Final
	if errors.As(f.Err, &final) {
		cause = as.Final(final)
	}
	return as.Failure(f, cause)
}

// marked is an error with the caller's word on it.
type marked struct {
	err   error
	final bool
}

func (m *marked) Error() string { return m.err.Error() }
func (m *marked) Unwrap() error { return m.err }

// Attempt is the error of a Send, as it came. Again says that the next delivery makes another attempt.
type Attempt struct {
	error
	Again bool
}

func (a *Attempt) Unwrap() error { return a.error }

// Mark marks an error of a call's Send: no retry can mend it (final), or nothing was sent. Mark of nil is nil.
func Mark(err error, final bool) error {
	if err == nil {
		return nil
	}
	return &marked{err, final}
}
