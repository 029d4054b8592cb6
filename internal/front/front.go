// Package front is what the front doors share between their users' types and the engine: what a key is made of, the
// settings of a call, values, reservations and calls to others, and what the observer is told. It knows no driver,
// and no type of the doors.
package front

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/retention"
	"github.com/pgonce/pgonce/pgerr"
)

// Settings are those of a Once that the engine takes.
type Settings struct {
	Table    dedup.Table
	MaxWait  time.Duration
	Tries    int
	Observer dedup.Observer

	// Translate gives an error of the engine the type of the front door, for the observer.
	Translate func(of Name, err error) error
}

const defaultTries = 10

var errTries = errors.New("negative Tries; 0 means 10")

// Claim checks the table, and makes of a valid key what the engine takes. Its error is a *claim.Failure.
func (s Settings) Claim(f Facts) (*claim.Claim, error) {
	sql, err := s.statements()
	if err != nil {
		return nil, err
	}
	c := &claim.Claim{
		SQL: sql, Source: f.name.Source, Operation: f.name.Operation, Key: f.name.ID, Timed: f.timed, At: f.at,
		Retention: cmp.Or(s.Table.Retention, dedup.DefaultRetention), MaxWait: s.MaxWait,
		Tries:    cmp.Or(s.Tries, defaultTries),
		MaxValue: dedup.MaxValueBytes,
	}
	if f.hashed {
		c.PayloadHash = f.payload[:]
	}
	c.Skew = retention.Skew(c.Retention)
	if s.Table.Layout == dedup.Weekly {
		c.Skew = claim.WeeklySkew
	}
	c.Tell = s.tell(c)
	return c, settleTime(s.Table.Layout, c, f)
}

// Claims makes the claims of a batch of n keys. A key that is not good, or not for this table, has a fault instead. Any
// other error is of them all.
func (s Settings) Claims(n int, facts func(int) (Facts, error)) (claims []*claim.Claim, faults []error, err error) {
	if _, err := s.statements(); err != nil {
		return nil, nil, err
	}
	claims, faults = make([]*claim.Claim, n), make([]error, n)
	for i := range n {
		f, err := facts(i)
		if err == nil {
			claims[i], err = s.Claim(f)
		}
		if err != nil {
			claims[i], faults[i] = nil, err
		}
	}
	return claims, faults, nil
}

// statements checks the settings, and returns what is sent to the table.
func (s Settings) statements() (claim.SQL, error) {
	if err := s.Table.Validate(); err != nil {
		return claim.SQL{}, &claim.Failure{Stage: claim.StageTable, Err: err}
	}
	if s.Tries < 0 {
		return claim.SQL{}, &claim.Failure{Stage: claim.StageSettings, Err: errTries}
	}
	sql, err := claim.For(s.Table.Name, s.Table.Layout == dedup.Weekly, s.Table.Spread != "")
	if err != nil {
		return claim.SQL{}, &claim.Failure{Stage: claim.StageTable, Err: err}
	}
	return sql, nil
}

// tell returns what tells the observer of the calls of c; nil without one.
func (s Settings) tell(c *claim.Claim) func(context.Context, claim.Result, error) {
	if s.Observer == nil {
		return nil
	}
	return func(ctx context.Context, res claim.Result, err error) {
		e := dedup.Event{
			Table: c.SQL.Table(), Source: c.Source, Operation: c.Operation,
			Outcome: what(res, err), Code: pgerr.Code(err), Waited: res.Waited, Held: res.Held, Age: res.Age,
		}
		if err != nil {
			e.Err = s.Translate(Name{c.Source, c.Operation, c.Key}, err)
			if f, ok := err.(*claim.Failure); ok {
				e.Stage = string(f.Stage)
			}
		}
		s.Observer.Observe(ctx, e)
	}
}

// what names the end of a call for the observer.
func what(res claim.Result, err error) dedup.Outcome {
	f, own := err.(*claim.Failure)
	switch {
	case err == nil && res.Outcome == claim.Executed:
		return dedup.Executed
	case err == nil:
		return dedup.Duplicate
	case !own:
		return dedup.Failed // fn's own, whatever it is
	case f.CommitUnknown:
		return dedup.Unknown
	}
	for _, s := range []struct {
		err  error
		what dedup.Outcome
	}{
		{claim.ErrInProgress, dedup.InProgress},
		{claim.ErrPayloadMismatch, dedup.PayloadMismatch},
		{claim.ErrExpired, dedup.Expired},
		{claim.ErrUnfinished, dedup.Unfinished},
		{claim.ErrLostLease, dedup.LostLease},
		{claim.ErrUnknown, dedup.Unsettled},
	} {
		if errors.Is(f, s.err) {
			return s.what
		}
	}
	var final *claim.Final
	if errors.As(f, &final) {
		return dedup.FinalFailure
	}
	return dedup.Failed
}
