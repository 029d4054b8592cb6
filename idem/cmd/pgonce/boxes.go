package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/outbox"
)

// inboxCmds look into an inbox.
type inboxCmds struct {
	Depth   inboxDepthCmd   `cmd:"" help:"Count what waits, and what is dead."`
	List    inboxListCmd    `cmd:"" help:"List messages, without their bodies: by default the dead ones."`
	Replay  inboxReplayCmd  `cmd:"" help:"Make messages due again: by default the dead ones."`
	Discard inboxDiscardCmd `cmd:"" help:"Give messages up: by default the dead ones."`
}

type inboxTable struct {
	Table string `default:"inbox" help:"The inbox, with its schema or without."`
}

func (t inboxTable) of() inbox.Table { return inbox.Table{Name: t.Table} }

// chosen are the messages that a command works on.
type chosen struct {
	inboxTable
	State      string   `default:"dead" enum:"waiting,handled,dead,discarded" help:"waiting, handled, dead or discarded."`
	Source     string   `help:"Only of this source."`
	Operation  string   `help:"Only of this operation."`
	ID         []string `name:"id" help:"Only these ids."`
	ErrorClass string   `help:"Only those that failed last with this class."`
}

func (c chosen) filter() inbox.Filter {
	states := map[string]inbox.State{
		"waiting": inbox.Waiting, "handled": inbox.Handled, "dead": inbox.Dead, "discarded": inbox.Discarded,
	}
	return inbox.Filter{
		State: states[c.State], Source: c.Source, Operation: c.Operation, IDs: c.ID, ErrorClass: c.ErrorClass,
	}
}

type inboxDepthCmd struct{ inboxTable }

func (c *inboxDepthCmd) Run(s *session) error {
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error {
		d, err := c.of().Depth(ctx, db)
		if err != nil {
			return err
		}
		return s.print(d, func() {
			fmt.Fprintf(s.out, "waiting %d (due %d, behind %d, taken %d), dead %d, the oldest waits for %s\n",
				d.Waiting, d.Due, d.Behind, d.Taken, d.Dead, d.Oldest.Round(time.Second))
		})
	})
}

type inboxListCmd struct {
	chosen
	Limit int `default:"100" help:"At most so many."`
}

// message is an inbox.Message in JSON, without its body and headers.
type message struct {
	Source, Operation, ID, State string
	ReceivedAt                   time.Time
	Attempt                      int
	ErrorClass                   string `json:",omitempty"`
}

func (c *inboxListCmd) Run(s *session) error {
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error {
		all, err := c.of().List(ctx, db, c.filter(), c.Limit)
		if err != nil {
			return err
		}
		list := make([]message, len(all))
		for i, m := range all {
			list[i] = message{m.Source, m.Operation, m.ID, m.State.String(), m.ReceivedAt, m.Attempt, m.ErrorClass}
		}
		return s.print(list, func() {
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
			defer w.Flush()
			fmt.Fprintln(w, "SOURCE\tOPERATION\tID\tSTATE\tRECEIVED\tATTEMPT\tERROR CLASS")
			for _, m := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", shown(m.Source), shown(m.Operation), shown(m.ID), m.State,
					m.ReceivedAt.Format(time.RFC3339), m.Attempt, shown(m.ErrorClass))
			}
		})
	})
}

type inboxReplayCmd struct{ chosen }

func (c *inboxReplayCmd) Run(s *session) error {
	return s.changed("replay the "+c.State+" messages of "+c.Table+" that fit", "replayed",
		func(ctx context.Context, db *pgxpool.Pool) (int64, error) { return c.of().Replay(ctx, db, c.filter()) })
}

type inboxDiscardCmd struct{ chosen }

func (c *inboxDiscardCmd) Run(s *session) error {
	return s.changed("give up the "+c.State+" messages of "+c.Table+" that fit", "discarded",
		func(ctx context.Context, db *pgxpool.Pool) (int64, error) { return c.of().Discard(ctx, db, c.filter()) })
}

// changed asks, changes rows, and prints how many.
func (s *session) changed(will, done string, change func(context.Context, *pgxpool.Pool) (int64, error)) error {
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error {
		if err := s.confirm("%s", will); err != nil {
			return err
		}
		n, err := change(ctx, db)
		if err != nil {
			return err
		}
		return s.print(map[string]int64{done: n}, func() { fmt.Fprintf(s.out, "%d %s\n", n, done) })
	})
}

// outboxCmds look into an outbox.
type outboxCmds struct {
	Lag     outboxLagCmd     `cmd:"" help:"Count what waits, and what is parked."`
	Parked  outboxParkedCmd  `cmd:"" aliases:"list" help:"List the events that had their last attempt."`
	Retry   outboxRetryCmd   `cmd:"" aliases:"replay" help:"Publish parked events again."`
	Discard outboxDiscardCmd `cmd:"" help:"Delete parked events, so that their keys go on."`
}

type outboxTable struct {
	Table string `default:"outbox" help:"The outbox, with its schema or without."`
}

func (t outboxTable) of() outbox.Table { return outbox.Table{Name: t.Table} }

type outboxLagCmd struct{ outboxTable }

func (c *outboxLagCmd) Run(s *session) error {
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error {
		l, err := c.of().Lag(ctx, db)
		if err != nil {
			return err
		}
		return s.print(l, func() {
			fmt.Fprintf(s.out, "waiting %d (held up %d, of them parked %d), the oldest waits for %s\n",
				l.Waiting, l.Held, l.Parked, l.Oldest.Round(time.Second))
		})
	})
}

type outboxParkedCmd struct {
	outboxTable
	Limit int `default:"100" help:"At most so many."`
}

// event is an outbox.Event in JSON, without its payload and headers.
type event struct {
	ID, Topic  string
	AppendedAt time.Time
	Attempt    int
}

func (c *outboxParkedCmd) Run(s *session) error {
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error {
		all, err := c.of().Parked(ctx, db, c.Limit)
		if err != nil {
			return err
		}
		list := make([]event, len(all))
		for i, e := range all {
			list[i] = event{e.ID, e.Topic, e.AppendedAt, e.Attempt}
		}
		return s.print(list, func() {
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
			defer w.Flush()
			fmt.Fprintln(w, "ID\tTOPIC\tAPPENDED\tATTEMPT")
			for _, e := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", e.ID, shown(e.Topic), e.AppendedAt.Format(time.RFC3339), e.Attempt)
			}
		})
	})
}

type outboxIDs struct {
	outboxTable
	ID []string `arg:"" name:"id" help:"Ids of events."`
}

type outboxRetryCmd struct{ outboxIDs }

func (c *outboxRetryCmd) Run(s *session) error {
	return s.changed(fmt.Sprintf("publish %d events of %s again", len(c.ID), c.Table), "to be published again",
		func(ctx context.Context, db *pgxpool.Pool) (int64, error) { return c.of().Retry(ctx, db, c.ID...) })
}

type outboxDiscardCmd struct{ outboxIDs }

func (c *outboxDiscardCmd) Run(s *session) error {
	return s.changed(fmt.Sprintf("delete %d events of %s that were not published", len(c.ID), c.Table), "deleted",
		func(ctx context.Context, db *pgxpool.Pool) (int64, error) { return c.of().Discard(ctx, db, c.ID...) })
}
