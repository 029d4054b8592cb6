package front

import (
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

var (
	errLease     = errors.New("the lease must be positive")
	errReadOnly  = errors.New("TxOptions are read-only: what Send brings could never be confirmed")
	errNoSend    = errors.New("no Send: it is nil")
	errLongLease = errors.New("the lease is longer than the provider remembers, so that no second attempt could ever be made")
	errNotHeld   = errors.New("this Reservation holds nothing; take one that Reserve returned with Executed")
)

// Reserve reserves the key of c, whatever a provider remembers. Where the key is settled already there is no Lease.
func Reserve(ctx context.Context, c *claim.Claim, conn pg.Conn, lease time.Duration) (*claim.Lease, claim.Record, error) {
	if err := checkLease("reserve", lease); err != nil {
		return nil, claim.Record{}, err
	}
	held, rec, _, err := c.Reserve(ctx, conn, lease, -1)
	return held, rec, err
}

func checkLease(stage string, lease time.Duration) error {
	if lease <= 0 {
		return &claim.Failure{Stage: stage, Err: errLease}
	}
	return nil
}

// Held is a reservation, and the claim that it was made by: the moves of a holder, with what is checked before any SQL.
type Held struct {
	Claim *claim.Claim
	Lease claim.Lease
}

// Settle confirms by move, which gives its argument what is held. After any error tx is failed, so that no commit
// brings what a holder wrote that has lost its lease; but where nothing was sent, tx is as it was.
func Settle(ctx context.Context, tx pg.Tx, value []byte, move func(func(Held) error) error) error {
	unsent := false
	err := move(func(h Held) error {
		err := h.Confirm(ctx, tx, value)
		unsent = claim.Unsent(err)
		return err
	})
	if err != nil && !unsent {
		_ = tx.Fail(ctx)
	}
	return err
}

// Confirm settles the key as done.
func (h Held) Confirm(ctx context.Context, tx pg.Tx, value []byte) error {
	return h.with(value, func() error { return h.Claim.Confirm(ctx, tx, h.Lease, value) })
}

// Fail settles it with a final failure.
func (h Held) Fail(ctx context.Context, conn pg.Conn, value []byte) error {
	return h.with(value, func() error { return h.Claim.Fail(ctx, conn, h.Lease, value) })
}

// Extend prolongs the lease.
func (h Held) Extend(ctx context.Context, conn pg.Conn, lease time.Duration) error {
	return h.with(nil, func() error {
		if err := checkLease("extend", lease); err != nil {
			return err
		}
		return h.Claim.Extend(ctx, conn, h.Lease, lease)
	})
}

// Release ends an attempt that sent nothing.
func (h Held) Release(ctx context.Context, conn pg.Conn) error {
	return h.with(nil, func() error { return h.Claim.Release(ctx, conn, h.Lease) })
}

// Void deletes a key of which no attempt took effect.
func (h Held) Void(ctx context.Context, conn pg.Conn) error {
	return h.with(nil, func() error { return h.Claim.Void(ctx, conn, h.Lease) })
}

func (h Held) with(value []byte, move func() error) error {
	if h.Lease == (claim.Lease{}) {
		return &claim.Failure{Stage: "reserve", Err: errNotHeld}
	}
	if err := checkSize(value); err != nil {
		return err
	}
	return move()
}

// Open is a key that is reserved or unfinished.
type Open struct {
	Facts  Facts
	Record claim.Record
}

// Open lists them; an empty source or operation stands for all.
func (s Settings) Open(ctx context.Context, conn pg.Conn, source, operation string, limit int) ([]Open, error) {
	c, err := s.table()
	if err != nil {
		return nil, err
	}
	c.Source, c.Operation = source, operation
	found, err := c.OpenKeys(ctx, conn, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Open, len(found))
	for i, o := range found {
		f := Named(Name{o.Source, o.Operation, o.Key})
		if _, inside := MillisOf(o.Key); s.Table.Layout == dedup.Weekly && !inside {
			f = withMicro(f, o.At)
		}
		all[i] = Open{f, o.Record}
	}
	return all, nil
}
