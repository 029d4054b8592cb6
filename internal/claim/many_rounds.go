package claim

import (
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// claim claims the rows, and answers the claims that stand for one. It returns the places of the new ones, after an
// error, too.
func (b *batch) claim(ctx context.Context, tx pg.Tx) (fresh []int, err error) {
	for len(b.open) > 0 {
		found, err := b.rounds(ctx, tx)
		if fresh = append(fresh, found...); err != nil {
			return fresh, err
		}
		if err := b.successors(ctx, tx); err != nil {
			return fresh, err
		}
	}
	return fresh, nil
}

// rounds inserts the open keys, and answers those that were there. It returns the places of the new ones.
func (b *batch) rounds(ctx context.Context, tx pg.Tx) (fresh []int, err error) {
	deadline := b.begun.Add(b.first().MaxWait)
	for range looks {
		found, err := b.insert(ctx, tx, time.Until(deadline))
		if err != nil {
			return fresh, err
		}
		fresh = append(fresh, found...)
		for _, i := range found {
			b.answers[i].Outcome = Executed
		}
		if b.unanswered(); len(b.open) == 0 {
			return fresh, nil
		}
		if err := b.look(ctx, tx); err != nil {
			return fresh, err
		}
		if b.unanswered(); len(b.open) == 0 {
			return fresh, nil
		}
	}
	for _, i := range b.open {
		b.answers[i].Err = &Failure{Stage: StageConfirm, Err: errHidden}
	}
	return fresh, nil
}

func (b *batch) answered(i int) bool { return b.answers[i].Outcome != 0 || b.answers[i].Err != nil }

// unanswered keeps of the open keys those that have no answer yet.
func (b *batch) unanswered() {
	var left []int
	for _, i := range b.open {
		if !b.answered(i) {
			left = append(left, i)
		}
	}
	b.open = left
}

// successors finds the rows of which a claim was refused for its time alone. There the next claim whose time is good
// stands for the row, and is open; those before it are answered.
func (b *batch) successors(ctx context.Context, tx pg.Tx) error {
	b.open = nil
	for i, c := range b.all {
		if c != nil && !b.answered(i) && untimely(b.answers[b.names[c.batchKey()]].Err) {
			b.open = append(b.open, i)
		}
	}
	if len(b.open) == 0 {
		return nil
	}
	outside, err := b.window(ctx, tx)
	if err != nil {
		return err
	}
	var next []int
	for n, i := range b.open {
		k := b.all[i].batchKey()
		switch {
		case !untimely(b.answers[b.names[k]].Err): // one before it stands for the row
		case outside[n] != nil:
			b.answers[i].Err = outside[n]
		default:
			b.names[k] = i
			next = append(next, i)
		}
	}
	b.sort(next)
	b.open = next
	return nil
}

func untimely(err error) bool { return errors.Is(err, ErrExpired) || errors.Is(err, ErrFuture) }

// window returns for each open key, by its number, whether its time lies outside of the window; nil where not.
func (b *batch) window(ctx context.Context, tx pg.Tx) (map[int]error, error) {
	c := b.first()
	outside := map[int]error{}
	args := []any{b.times(), c.Retention.Microseconds(), c.Skew.Microseconds()}
	err := tx.Query(ctx, pinnedWindowMany, args, func(scan func(...any) error) error {
		var n int64
		var expired bool
		if err := scan(&n, &expired); err != nil {
			return err
		}
		f := &Failure{Stage: StageClaim, Err: ErrFuture}
		if expired {
			f.Err = ErrExpired
		}
		outside[int(n-1)] = f
		return nil
	})
	if err != nil {
		return nil, c.failed(StageConfirm, err)
	}
	return outside, nil
}

// answer is what the row means for c.
func (c *Claim) answer(m *met) Answer {
	res, err := c.verdict(m)
	if err != nil {
		err = &Failure{Stage: StageClaim, Err: err}
	}
	return Answer{res, err}
}

// repeat answers the claims whose row another one of the batch stands for.
func (b *batch) repeat() {
	for i, c := range b.all {
		if c == nil || b.answered(i) {
			continue
		}
		k := c.batchKey()
		if m := b.met[k]; m != nil {
			b.answers[i] = c.answer(m)
			continue
		}
		before := b.names[k]
		answer, other := b.answers[before], b.all[before].PayloadHash
		switch {
		case answer.Outcome != Executed: // of the time, or of what hides the row
		case c.PayloadHash != nil && other != nil && string(c.PayloadHash) != string(other):
			answer = Answer{Err: &Failure{Stage: StageClaim, Err: ErrPayloadMismatch}}
		default:
			answer = Answer{Result: Result{Outcome: Duplicate}}
		}
		b.answers[i] = answer
	}
}
