package claim

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pgonce/pgonce/internal/pg"
)

// Inside are the claims whose fn has begun, as a context or a transaction knows them: the outer ones come first.
type Inside []*running

// running is a claim whose fn has begun, or a batch of them.
type running struct {
	claim *Claim
	batch map[rowName]*Claim
	state atomic.Int32
}

// meets reports whether c is a claim of a row that is claimed here.
func (r *running) meets(c *Claim) bool {
	mine := r.claim
	if r.batch != nil {
		mine = r.batch[c.rowName()]
	}
	return mine != nil && mine.meets(c)
}

const (
	stateRuns int32 = iota
	stateRefused
	stateReturned
)

// refuse reports whether fn has not returned yet, and has the call fail in which it runs.
func (r *running) refuse() bool {
	return r.state.CompareAndSwap(stateRuns, stateRefused) || r.state.Load() == stateRefused
}

type insideKey struct{}

// InsideOf returns what ctx is inside of.
func InsideOf(ctx context.Context) Inside {
	in, _ := ctx.Value(insideKey{}).(Inside)
	return in
}

// In returns ctx inside of in, too: a front door adds what the caller's transaction knows.
func (in Inside) In(ctx context.Context) context.Context {
	all := InsideOf(ctx)
	known := len(all)
	for _, r := range in {
		if !slices.Contains(all, r) {
			all = append(slices.Clip(all), r)
		}
	}
	if len(all) == known {
		return ctx
	}
	return context.WithValue(ctx, insideKey{}, all)
}

// guard makes of fn one that tells by its context that it runs, and that fails where a call of its key was refused
// inside: an fn that swallowed that error has no effect to be executed.
func (c *Claim) guard(fn func(context.Context, pg.Tx) error) func(context.Context, pg.Tx) error {
	return func(ctx context.Context, tx pg.Tx) error {
		return (&running{claim: c}).guarded(ctx, tx, fn)
	}
}

func (r *running) guarded(ctx context.Context, tx pg.Tx, fn func(context.Context, pg.Tx) error) error {
	defer r.state.Store(stateReturned) // whatever becomes of fn
	err := fn(Inside{r}.In(ctx), tx)
	if r.state.Swap(stateReturned) == stateRefused && err == nil {
		return &Failure{Stage: StageFn, Err: ErrNested, Hint: "fn has swallowed the error of that call"}
	}
	return err
}

// outside refuses a call that is made inside of the fn of its own key. Every fn in between may swallow the error, so
// that their calls fail, too.
func (c *Claim) outside(ctx context.Context, stage Stage) error {
	in := InsideOf(ctx)
	i := slices.IndexFunc(in, func(r *running) bool { return r.meets(c) && r.refuse() })
	if i < 0 {
		return nil
	}
	for _, r := range in[i:] {
		r.refuse()
	}
	return &Failure{
		Stage: stage, Err: ErrNested,
		Hint: "call it before or after, or give the effect inside an operation of its own",
	}
}

// meets reports whether both are claims of one row. Of two names of which one has no schema it is taken for granted
// that they are one table: the search path is the server's. Time and payload don't count, and neither does the
// database.
func (c *Claim) meets(d *Claim) bool {
	a, b := c.SQL.name, d.SQL.name
	return c.Source == d.Source && c.Operation == d.Operation && c.Key == d.Key &&
		a.Table == b.Table && (a.Schema == b.Schema || a.Schema == "" || b.Schema == "")
}
