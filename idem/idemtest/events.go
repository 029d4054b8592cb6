package idemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// Events makes each delivery, and then once more, and returns what each has put into the outbox: a list for each of
// Deliveries, in their order, with the events in the order of their Append. The second delivery of an event must put in
// nothing. What the events ought to be, you say yourself.
//
// That an event is there if and only if the effect is, the other parts check: they compare the outbox as they compare
// any table. A handler that appends outside of the effect's transaction fails [Kit.Crash].
func (k Kit[D]) Events(t TB, table outbox.Table) (made [][]outbox.Event) {
	t.Helper()
	run(t, k, part[D]{"Events", func(l *lab[D]) (err error) {
		made, err = l.events(table)
		return err
	}})
	return made
}

func (l *lab[D]) events(table outbox.Table) (made [][]outbox.Event, err error) {
	if err := table.Validate(); err != nil {
		return nil, err
	}
	st, b, err := l.stage()
	if err != nil {
		return nil, err
	}
	name := table.Name
	if name == "" {
		name = "outbox"
	}
	found, err := l.cat.find(name)
	if err != nil {
		return nil, err
	}
	seen, err := appended(l.ctx, st, found)
	if err != nil {
		return nil, err
	}
	for i := range l.Deliveries {
		for _, again := range []bool{false, true} {
			if err := l.once(st, b, i, again, b.states[i+1]); err != nil {
				return nil, err
			}
			all, err := appended(l.ctx, st, found)
			if err != nil {
				return nil, err
			}
			fresh := all[min(len(seen), len(all)):]
			seen = all
			switch {
			case !again:
				made = append(made, fresh)
			case len(fresh) > 0: // where the table is not compared
				return nil, &finding{
					sentence: fmt.Sprintf("%s, made a second time, after it had been acknowledged: "+
						"%d events too many in %v, the first of topic %s", l.name(i), len(fresh), found, fresh[0].Topic),
					database: st.name,
				}
			}
		}
	}
	return made, nil
}

// appended reads the events of an outbox, in their order.
func appended(ctx context.Context, st *stage, t *userTable) (all []outbox.Event, err error) {
	rows, err := st.pool.Query(ctx,
		`SELECT id::text, topic, key, headers::text, payload, appended_at FROM `+t.sql()+` ORDER BY seq`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.Event, err error) {
		var headers *string
		if err := row.Scan(&e.ID, &e.Topic, &e.Key, &headers, &e.Payload, &e.AppendedAt); err != nil || headers == nil {
			return e, err
		}
		return e, json.Unmarshal([]byte(*headers), &e.Headers)
	})
}

// The columns of an inbox and of an outbox that a delivery decides. Attempts, times and the numbers of either are the
// library's own business, and differ from run to run.
var (
	inboxColumns  = []string{"source", "operation", "message_id", "key", "headers", "body", "state"}
	outboxColumns = []string{"topic", "key", "headers", "payload"}
)

// markOwn leaves of a table of an inbox's or an outbox's what a delivery decides.
func (t *userTable) markOwn() {
	var keep []string
	switch {
	case strings.HasPrefix(t.comment, "pgonce inbox table, version "):
		keep, t.inbox = inboxColumns, true
	case strings.HasPrefix(t.comment, "pgonce outbox table, version "):
		keep = outboxColumns
	default:
		return
	}
	for i := range t.columns {
		t.columns[i].volatile = !slices.Contains(keep, t.columns[i].name)
	}
}
