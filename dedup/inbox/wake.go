package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// channel is what NOTIFY and LISTEN meet on, in each database. Notifications have no payload: which messages there
// are, the table says.
const channel = "pgonce_inbox"

// Notify wakes the workers that [Listen], of every process. Call it after the COMMIT, once for many transactions:
// inside a transaction the COMMIT would wait for all others that notify. It works behind PgBouncer.
func Notify(ctx context.Context, db Conn) error {
	if err := engine.Notify(ctx, pg.FromPgx(db), channel); err != nil {
		return fmt.Errorf("inbox: notify: %w", err)
	}
	return nil
}

// Listen sends to wake whenever somebody has called [Notify], until ctx ends or the connection is lost; it returns that
// error. Give [Worker].Wake the same channel, with room for one:
//
//	wake := make(chan struct{}, 1)
//	go func() { _ = inbox.Listen(ctx, conn, wake) }()
//
// conn must be direct: behind PgBouncer in transaction mode nobody is told. Workers still poll while nobody listens.
func Listen(ctx context.Context, conn *pgx.Conn, wake chan<- struct{}) error {
	if _, err := conn.Exec(ctx, "LISTEN "+pg.Quote(channel)); err != nil {
		return fmt.Errorf("inbox: listen: %w", err)
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("inbox: listen: %w", err)
		}
		select {
		case wake <- struct{}{}:
		default: // it has not taken the last one yet, and will look anyway
		}
	}
}
