// Package front is what the front doors share between their users' types and the engine: what a key is made of, the
// settings of a call, values, reservations and calls to others, and what the observer is told. It knows no driver, and no
// type of the doors.
package front

import (
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
	Table   dedup.Table
	MaxWait time.Duration
	Tries   int
}

const defaultTries = 10

var errTries = errors.New("negative Tries; 0 means 10")

// Claim checks the table, and makes of a valid key what the engine takes. Its error is a *claim.Failure.
func (s Settings) Claim(f Facts) (*claim.Claim, error) {
	c, err := s.table()
	if err != nil {
		return nil, err
	}
	c.Source, c.Operation, c.Key = f.name.Source, f.name.Operation, f.name.ID
	c.Timed, c.At = f.timed, f.at
	if err := settleTime(s.Table.Layout, c, f); err != nil {
		return nil, err
	}
	if f.hashed {
		c.PayloadHash = f.payload[:]
	}
	return c, nil
}

// table checks the table, and makes the claim of no key.
func (s Settings) table() (*claim.Claim, error) {
	if err := s.Table.Validate(); err != nil {
		return nil, &claim.Failure{Stage: "table", Err: err}
	}
	if s.Tries < 0 {
		return nil, &claim.Failure{Stage: "settings", Err: errTries}
	}
	sql, err := claim.For(s.Table.Name, s.Table.Layout == dedup.Weekly)
	if err != nil {
		return nil, &claim.Failure{Stage: "table", Err: err}
	}
	c := &claim.Claim{SQL: sql, Retention: s.Table.Retention, MaxWait: s.MaxWait, Tries: s.Tries}
	if c.Retention == 0 {
		c.Retention = dedup.DefaultRetention
	}
	c.Skew = retention.Skew(c.Retention)
	if s.Table.Layout == dedup.Weekly {
		c.Skew = claim.WeeklySkew
	}
	if c.Tries == 0 {
		c.Tries = defaultTries
	}
	return c, nil
}

// Observed calls the engine, and tells the observer of it, where there is one.
func Observed(ctx context.Context, o dedup.Observer, c *claim.Claim, engine func(*claim.Claim) (claim.Result, error)) (claim.Outcome, error) {
	if o == nil {
		res, err := engine(c)
		return res.Outcome, err
	}
	// Told from a deferred call, so that a panic of fn, which passes through, is told too.
	e := dedup.Event{Table: c.SQL.Table(), Source: c.Source, Operation: c.Operation, What: dedup.Failed}
	defer func() { o.Observe(ctx, e) }()
	res, err := engine(c)
	e.What, e.Code = what(res, err), pgerr.Code(err)
	e.Waited, e.Held, e.Age = res.Waited, res.Held, res.Age
	return res.Outcome, err
}

// what names the end of a call for the observer.
func what(res claim.Result, err error) dedup.What {
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
		what dedup.What
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
