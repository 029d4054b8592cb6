package idemtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/dedup/outbox/outboxsql"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
)

func boxes(ctx context.Context, pool *pgxpool.Pool) error {
	if err := inbox.Migrate(ctx, pool); err != nil {
		return err
	}
	if err := outbox.Migrate(ctx, pool); err != nil {
		return err
	}
	return setup(ctx, pool)
}

// credited is the event that a payment makes. Without a key its lane is drawn by lot.
func credited(id string) outbox.Event {
	return outbox.Event{Topic: "credited", Payload: []byte(id), Headers: map[string]string{"type": "text"}}
}

func messageOf(p payment) inbox.Message {
	return inbox.Message{Source: "payments", Operation: "credit", ID: p.ID, Body: []byte(p.ID)}
}

func paymentOf(m inbox.Message) payment {
	for _, p := range payments {
		if p.ID == m.ID {
			return p
		}
	}
	return payment{ID: m.ID, Account: "nobody"}
}

// tell appends the event on q, the handler's transaction or not.
type tell = func(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, id string) error

func inside(ctx context.Context, _ *pgxpool.Pool, tx pgx.Tx, id string) error {
	return outbox.Append(ctx, tx, credited(id))
}

func outside(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx, id string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, credited(id)) })
}

// throughInbox delivers through an inbox.
func throughInbox(tell tell) func(db *idemtest.DB) func(context.Context, payment) error {
	return idemtest.Inbox(inbox.Table{}, messageOf, func(db *idemtest.DB) func(context.Context, inbox.Worker) error {
		pool := db.Pool()
		return func(ctx context.Context, w inbox.Worker) error {
			_, err := w.Drain(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if err := credit(ctx, tx, paymentOf(m)); err != nil {
					return err
				}
				return tell(ctx, pool, tx, m.ID)
			})
			return err
		}
	})
}

func throughInboxSQL(db *idemtest.DB) func(context.Context, payment) error {
	return idemtest.Inbox(inbox.Table{}, messageOf, func(db *idemtest.DB) func(context.Context, inbox.Worker) error {
		return func(ctx context.Context, w inbox.Worker) error {
			_, err := inboxsql.Drain(ctx, db.SQL(), w, func(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO ledger (event, amount) VALUES ($1, 1)`, m.ID)
				if err != nil {
					return err
				}
				return outboxsql.Append(ctx, tx, outbox.Table{}, credited(m.ID))
			})
			return err
		}
	})(db)
}

// tellDirectly claims with idem, and tells.
func tellDirectly(tell tell, claimed bool) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := idem.Do(ctx, tx, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
					if err := credit(ctx, tx, p); err != nil || !claimed {
						return err
					}
					return tell(ctx, pool, tx, p.ID)
				})
				if err != nil || claimed {
					return err
				}
				return tell(ctx, pool, tx, p.ID)
			})
		}
	}
}

func boxKit(t testing.TB, h func(db *idemtest.DB) func(context.Context, payment) error) idemtest.Kit[payment] {
	k := kit(t, h)
	k.Setup, k.Deliveries = boxes, payments[:1]
	return k
}

// A handler behind an inbox, and one that appends to an outbox, are sound where all is in one transaction.
func TestBoxes(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]func(db *idemtest.DB) func(context.Context, payment) error{
		"pgx":          throughInbox(inside),
		"database/sql": throughInboxSQL,
		"without":      onPool(tellDirectly(inside, true)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := boxKit(t, h)
			if name == "database/sql" {
				k.DoubleSubmit(t) // the rest takes long
				k.Backed(t)
			} else {
				k.All(t)
			}
			made := k.Events(t, outbox.Table{})
			if idemtest.Child() {
				return
			}
			require.Len(t, made, 1)
			require.Len(t, made[0], 1)
			require.NotEmpty(t, made[0][0].ID)
			require.False(t, made[0][0].AppendedAt.IsZero())
			want := credited("evt_1")
			want.ID, want.AppendedAt = made[0][0].ID, made[0][0].AppendedAt
			require.Equal(t, want, made[0][0])
		})
	}
}

// An event that stands or falls without its effect is found, and so is one that a second delivery makes.
func TestBoxesMisused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler func(db *idemtest.DB) func(context.Context, payment) error
		part    func(idemtest.Kit[payment], idemtest.TB)
		says    string
	}{
		"outside, behind an inbox": {throughInbox(outside), idemtest.Kit[payment].Crash, "of outbox too many"},
		"outside":                  {onPool(tellDirectly(outside, true)), idemtest.Kit[payment].Crash, "of outbox too many"},
		"again, in the kit's words": {
			onPool(tellDirectly(inside, false)), idemtest.Kit[payment].DoubleSubmit, "1 row of outbox too many",
		},
		"again": {
			onPool(tellDirectly(inside, false)),
			func(k idemtest.Kit[payment], t idemtest.TB) { k.Events(t, outbox.Table{}) }, "1 row of outbox too many",
		},
		"again, in a table that is not compared": {
			onPool(tellDirectly(inside, false)),
			func(k idemtest.Kit[payment], t idemtest.TB) {
				k.Tables = []string{"ledger"}
				k.Events(t, outbox.Table{})
			}, "1 events too many in outbox, the first of topic credited",
		},
		"no outbox": {
			onPool(tellDirectly(inside, true)),
			func(k idemtest.Kit[payment], t idemtest.TB) { k.Events(t, outbox.Table{Name: "nothing"}) },
			"there is no table nothing",
		},
		"dead": {
			throughInbox(func(context.Context, *pgxpool.Pool, pgx.Tx, string) error { return inbox.ErrFinal }),
			idemtest.Kit[payment].DoubleSubmit, "its message is dead",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := boxKit(t, tc.handler)
			require.Contains(t, failure(t, func(tb idemtest.TB) { tc.part(k, tb) }), tc.says)
		})
	}
}
