package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// proof compares the database with the file; what the program counted itself plays no part in it.
type proof struct {
	deliveries, events, effects int64
	lost, repeated              int64 // events without an effect, and with more than one

	states []state // of the file's subscriptions
}

type state struct {
	Status        string
	Subscriptions int64
}

func (p proof) holds() bool { return p.effects == p.events && p.lost == 0 && p.repeated == 0 }

const (
	// In the database, because a set of all events in memory would grow with the file.
	delivered = `CREATE TEMPORARY TABLE delivered (provider text, event_id text, subscription text) ON COMMIT DROP`

	states = `
SELECT status, count(*)
  FROM quickstart_subscriptions
 WHERE stripe_subscription_id IN (SELECT subscription FROM delivered)
 GROUP BY status
 ORDER BY count(*) DESC, status`
)

//go:embed prove.sql
var proveSQL string

// prove reads the file again and looks up what became of its events.
func prove(ctx context.Context, db interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}, r io.Reader,
) (p proof, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, delivered); err != nil {
			return err
		}
		next, stop := iter.Pull2(read(r))
		defer stop()
		row := func() ([]any, error) {
			d, err, ok := next()
			if err != nil || !ok {
				return nil, err
			}
			return []any{d.Provider, d.ID, d.Object}, nil
		}
		columns := []string{"provider", "event_id", "subscription"}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"delivered"}, columns, pgx.CopyFromFunc(row)); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, proveSQL).Scan(&p.deliveries, &p.events, &p.effects, &p.lost, &p.repeated); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, states)
		if err != nil {
			return err
		}
		p.states, err = pgx.CollectRows(rows, pgx.RowToStructByPos[state])
		return err
	})
	if err != nil {
		return proof{}, fmt.Errorf("compare the database with the file: %w", err)
	}
	return p, nil
}

// report prints the table, and the line that proves it. It returns an error where something failed, or the proof does
// not hold.
func report(out io.Writer, c counts, p proof, took time.Duration) error {
	var subscriptions int64
	var states []string
	for _, s := range p.states {
		subscriptions += s.Subscriptions
		states = append(states, fmt.Sprintf("%d %s", s.Subscriptions, s.Status))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, value any, notes ...string) {
		fmt.Fprintf(w, "%s\t%v", name, value)
		for _, note := range notes {
			fmt.Fprintf(w, "\t%s", note)
		}
		fmt.Fprintln(w)
	}
	row("deliveries", p.deliveries)
	row("distinct events", p.events)
	row("effects", p.effects, fmt.Sprintf("rows in the database, %d of them from this run", c.executed))
	row("duplicates", c.duplicates, "recognised, nothing written")
	row("stale updates", c.stale, "older than the state that was there, which stayed")
	row("failed", c.failed)
	row("subscriptions", subscriptions, strings.Join(states, ", "))
	row("time", took.Round(time.Millisecond))
	if err := w.Flush(); err != nil {
		return err
	}
	if p.holds() {
		fmt.Fprintf(out, "\nproof: %d effects = %d distinct events, none lost, none repeated\n", p.effects, p.events)
	} else {
		fmt.Fprintf(out, "\nNOT PROVEN: %d effects, %d distinct events, %d lost, %d repeated\n", p.effects, p.events, p.lost,
			p.repeated)
	}
	switch {
	case c.failed > 0:
		return c.failures()
	case !p.holds():
		return errors.New("not every event has exactly one effect")
	case int64(c.deliveries()) != p.deliveries:
		return errors.New("the file was changed while it was read")
	}
	return nil
}
