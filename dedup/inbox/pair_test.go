package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
)

// bookAndTell books a payment and tells of it: the payment, the event, and the message's completion are committed
// together, or none of them.
func bookAndTell(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	if err := book(ctx, tx, m); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, outbox.Event{Topic: "payments", Key: m.Key, Payload: []byte(m.ID)})
}

// mailings is a consumer's scope. Each consumer that does something of its own with an event has its own operation.
var mailings = idem.Scope{Source: "payments", Operation: "mail-receipt"}

// consume takes the event's id, which is the same each time the event is published, as its key.
func consume(ctx context.Context, pool *pgxpool.Pool, e outbox.Event) (idem.Outcome, error) {
	return idem.Run(ctx, pool, mailings.Key(e.ID), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO receipts (payment) VALUES ($1)`, string(e.Payload))
		return err
	})
}

// From a message that comes twice, over a relay that publishes twice, to one effect.
func Example_outbox() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	if err := pairTables(ctx, pool); err != nil {
		fmt.Println(err)
	}
	relay := outbox.Relay{Publisher: outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
		for _, e := range append(events, events...) { // a broker delivers at least once
			out, err := consume(ctx, pool, e)
			if err != nil {
				return err
			}
			fmt.Println("receipt for", string(e.Payload), out)
		}
		return nil
	})}
	for range 2 {
		if err := receive(ctx, pool, "evt_1", "ada"); err != nil {
			fmt.Println(err)
		}
		handled, err := inbox.Worker{}.Drain(ctx, pool, bookAndTell)
		fmt.Println("handled", handled.Handled, err)
		published, err := relay.Drain(ctx, pool)
		fmt.Println("published", published.Published, err)
	}
	// Output:
	// evt_1 stored
	// handled 1 <nil>
	// receipt for evt_1 executed
	// receipt for evt_1 duplicate
	// published 1 <nil>
	// evt_1 duplicate
	// handled 0 <nil>
	// published 0 <nil>
}

// pairTables makes what the pair needs besides the inbox.
func pairTables(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `CREATE TABLE receipts (payment text)`)
	return errors.Join(err, outbox.Migrate(ctx, pool), dedup.Migrate(ctx, pool))
}

// The events of a message are there if and only if it is handled: an attempt that fails, whenever that is, leaves
// none, and a message that comes again, in whatever state, makes none.
func TestPair(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	require.NoError(t, pairTables(ctx, pool))
	execSQL(t, pool, `CREATE TABLE payments (event text, customer text)`)
	execSQL(t, pool, `CREATE TABLE known (event text PRIMARY KEY)`)
	execSQL(t, pool, `CREATE TABLE checked (event text REFERENCES known DEFERRABLE INITIALLY DEFERRED)`)
	message := msg("k", "evt_1")
	events := func() int { return count(t, pool, `SELECT count(*) FROM outbox`) }
	attempt := func(h inbox.Handler) (inbox.Stats, error) {
		t.Helper()
		execSQL(t, pool, `UPDATE inbox SET due_at = now() WHERE due_at IS NOT NULL`)
		return inbox.Worker{MaxAttempts: 5}.Drain(ctx, pool, h)
	}
	comesAgain := func(handled int) {
		t.Helper()
		again(t, pool, message)
		if handled == 1 {
			s, err := attempt(bookAndTell)
			require.NoError(t, err)
			require.Zero(t, s)
		}
		require.Equal(t, handled, events())
		require.Equal(t, handled, count(t, pool, `SELECT count(*) FROM payments`))
	}
	store(t, pool, message)
	for name, fails := range map[string]func(tx pgx.Tx) error{
		"by an error": func(pgx.Tx) error { return errNothing },
		"by a panic":  func(pgx.Tx) error { panic("fails") },
		"at COMMIT": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO checked VALUES ('unknown')`)
			return err
		},
		"for good": func(pgx.Tx) error { return inbox.ErrFinal },
	} {
		s, err := attempt(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			comesAgain(0) // while it is being handled
			if err := bookAndTell(ctx, tx, m); err != nil {
				return err
			}
			return fails(tx)
		})
		require.Error(t, err, name)
		require.EqualValues(t, 1, s.Failed, name)
		comesAgain(0)
		if s.Dead > 0 {
			_, err = inbox.Table{}.Replay(ctx, pool, inbox.Filter{})
			require.NoError(t, err)
		}
	}
	s, err := attempt(bookAndTell)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Handled)
	comesAgain(1)

	// The broker has the event, and the relay does not know: it is published again, under the same id.
	ids := map[string]int{}
	var outs []idem.Outcome
	relay := outbox.Relay{
		MinRetry: 1, MaxRetry: 1,
		Publisher: outbox.PublisherFunc(func(ctx context.Context, all []outbox.Event) error {
			for _, e := range all {
				ids[e.ID]++
				out, err := consume(ctx, pool, e)
				require.NoError(t, err)
				outs = append(outs, out)
			}
			if len(outs) == 1 {
				return outbox.ErrUnavailable
			}
			return nil
		}),
	}
	_, err = relay.Drain(ctx, pool)
	require.ErrorIs(t, err, outbox.ErrUnavailable)
	require.Equal(t, 1, events())
	require.Eventually(t, func() bool {
		_, err := relay.Drain(ctx, pool)
		require.NoError(t, err)
		return events() == 0
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, []idem.Outcome{idem.Executed, idem.Duplicate}, outs)
	require.Len(t, ids, 1)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM receipts`))
}
