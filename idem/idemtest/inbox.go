package idemtest

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/dedup/inbox"
)

// Inbox makes a Kit.Handler of a handler behind an inbox: message makes the message of a delivery, with the same id
// each time; drain makes what drains the inbox with a given worker, on the connections of db. A delivery stores its
// message, and is acknowledged when it has been handled. An attempt that fails is made again, as in production; a
// message that is dead fails the delivery.
//
//	Handler: idemtest.Inbox(inbox.Table{},
//		func(e Event) inbox.Message { return inbox.Message{Source: "stripe", Operation: "book", ID: e.ID, Body: e.Body} },
//		func(db *idemtest.DB) func(context.Context, inbox.Worker) error {
//			return func(ctx context.Context, w inbox.Worker) error {
//				_, err := w.Drain(ctx, db.Pool(), handle) // or inboxsql.Drain(ctx, db.SQL(), w, handle)
//				return err
//			}
//		}),
func Inbox[D any](table inbox.Table, message func(d D) inbox.Message,
	drain func(db *DB) func(ctx context.Context, w inbox.Worker) error,
) func(db *DB) func(context.Context, D) error {
	return func(db *DB) func(context.Context, D) error {
		work := drain(db)
		// Short times: a worker that the kit has cut off is missed at once.
		w := inbox.Worker{
			Table: table, Lease: 50 * time.Millisecond, MinRetry: time.Millisecond, MaxRetry: 50 * time.Millisecond,
		}
		return func(ctx context.Context, d D) error {
			m := message(d)
			if _, err := table.Store(ctx, db.Pool(), m); err != nil {
				return err
			}
			for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
				failed := work(ctx, w)
				state, err := stateOf(ctx, table, db, m)
				switch {
				case err != nil:
					return cmp.Or(failed, err)
				case state == inbox.Handled:
					return nil // a failure was another message's, or was made good
				case state == inbox.Dead:
					return fmt.Errorf("its message is dead: %w", failed)
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("its message is not handled: %w", cmp.Or(failed, ctx.Err()))
				case <-time.After(pause):
				}
			}
		}
	}
}

// stateOf returns handled, dead or waiting.
func stateOf(ctx context.Context, table inbox.Table, db *DB, m inbox.Message) (inbox.State, error) {
	for _, state := range []inbox.State{inbox.Handled, inbox.Dead} {
		f := inbox.Filter{State: state, Source: m.Source, Operation: m.Operation, IDs: []string{m.ID}}
		found, err := table.List(ctx, db.Pool(), f, 1)
		if err != nil || len(found) > 0 {
			return state, err
		}
	}
	return inbox.Waiting, nil
}
