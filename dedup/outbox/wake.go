package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	engine "github.com/pgonce/pgonce/internal/outbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// channel is what NOTIFY and LISTEN meet on, in each database. Notifications have no payload: which events there
// are, the table says.
const channel = "pgonce_outbox"

// Notify wakes the relays that [Listen], of every process. Call it after the COMMIT, once for many transactions: inside
// a transaction the COMMIT would wait for all others that notify. It works behind PgBouncer.
func Notify(ctx context.Context, db Conn) error {
	if err := engine.Notify(ctx, pg.FromPgx(db), channel); err != nil {
		return fmt.Errorf("outbox: notify: %w", err)
	}
	return nil
}

// Listen sends to wake at once, and whenever somebody has called [Notify], until ctx ends or the connection is lost; it
// returns that error. Call it again with a new connection: what was committed meanwhile is found at once. Give
// [Relay].Wake the same channel, with room for one:
//
//	wake := make(chan struct{}, 1)
//	go func() { _ = outbox.Listen(ctx, conn, wake) }()
//
// conn must be direct: behind PgBouncer in transaction mode nobody is told. Relays still poll while nobody listens.
func Listen(ctx context.Context, conn *pgx.Conn, wake chan<- struct{}) error {
	if _, err := conn.Exec(ctx, "LISTEN "+pg.Quote(channel)); err != nil {
		return fmt.Errorf("outbox: listen: %w", err)
	}
	for {
		// At first, too: nobody was told of what was committed before.
		select {
		case wake <- struct{}{}:
		default: // it has not taken the last one yet, and will look anyway
		}
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("outbox: listen: %w", err)
		}
	}
}
