package idemtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/pgerr"
)

// made is what is said of a constraint whose values come from elsewhere than the delivery.
func made(table string) string {
	return "the constraint i backs no key: its values in " + table + " are made anew for each delivery"
}

// counted has a trigger number the rows.
const counted = `
CREATE SEQUENCE numbers;
CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.no := nextval('numbers'); RETURN NEW; END $$;
ALTER TABLE ledger ADD no bigint NOT NULL CONSTRAINT i UNIQUE;
CREATE TRIGGER number BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION number()`

func TestBacked(t *testing.T) {
	t.Parallel()
	own := byCode(func(err error) bool { return pgerr.Duplicate(err, "seen_pkey") })
	for _, c := range []struct {
		name       string
		handler    maker
		after      string // SQL after Setup
		constraint string
		dedup      []dedup.Table
		want       string
	}{
		{name: "dedup table", handler: soundOn},
		{name: "own constraint", handler: own, constraint: "seen_pkey"},
		{name: "none is named", handler: own, after: `DROP TABLE processed_events`, want: "nothing backs the keys"},
		{name: "it is not there", handler: own, constraint: "gone", want: "gone backs no key: it does not exist"},
		{name: "nothing is written to it", handler: noKey, want: "wrote no row that a unique constraint keeps"},
		{
			name: "dedup table is missing", handler: soundOn, dedup: []dedup.Table{{Name: "other"}},
			want: "Kit.Dedup: there is no table other",
		},
		{
			name: "dedup table without its constraint", handler: own,
			after: `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`,
			want:  "the table processed_events does not back its keys: 1 problem",
		},
		{name: "not unique", handler: own, after: `CREATE INDEX i ON seen (event)`, constraint: "i", want: "not unique"},
		{
			name: "deferrable", handler: own, after: `ALTER TABLE seen ADD CONSTRAINT i UNIQUE (event) DEFERRABLE`,
			constraint: "i", want: "deferrable",
		},
		{
			name: "partial", handler: own, after: `CREATE UNIQUE INDEX i ON seen (event) WHERE event <> ''`, constraint: "i",
			want: "partial",
		},
		{
			name: "expression", handler: own, after: `CREATE UNIQUE INDEX i ON seen (left(event, 5))`, constraint: "i",
			want: "on an expression",
		},
		{
			name: "nullable", handler: own, after: `ALTER TABLE seen ADD other int, ADD CONSTRAINT i UNIQUE (event, other)`,
			constraint: "i", want: "NULLs are not equal",
		},
		{
			name: "a part that is always new", handler: own,
			after:      `ALTER TABLE seen ADD id uuid NOT NULL DEFAULT gen_random_uuid(), ADD CONSTRAINT i UNIQUE (event, id)`,
			constraint: "i", want: "the constraint i backs no key",
		},
		{
			name: "an identity", handler: own, after: `ALTER TABLE ledger ADD CONSTRAINT i PRIMARY KEY (id)`, constraint: "i",
			want: made("ledger"),
		},
		{
			name: "a uuid by default", handler: own,
			after: `ALTER TABLE ledger ADD no uuid DEFAULT gen_random_uuid() CONSTRAINT i PRIMARY KEY`, constraint: "i",
			want: made("ledger"),
		},
		{
			name: "a sequence", handler: own, after: `ALTER TABLE ledger ADD no bigserial CONSTRAINT i UNIQUE`, constraint: "i",
			want: made("ledger"),
		},
		{
			name: "a time", handler: own, after: `ALTER TABLE ledger ADD CONSTRAINT i UNIQUE (event, at)`, constraint: "i",
			want: made("ledger"),
		},
		{name: "a trigger's", handler: own, after: counted, constraint: "i", want: made("ledger")},
		{
			name: "a default that is not used", handler: own,
			after: `ALTER TABLE seen ALTER event SET DEFAULT gen_random_uuid()::text`, constraint: "seen_pkey",
		},
		{name: "time in the key", handler: timeInKey, want: "time or random part in the key"},
		{
			name: "another constraint of the row", handler: own,
			after:      `ALTER TABLE seen ADD other text NOT NULL DEFAULT 'x', ADD CONSTRAINT i UNIQUE (event, other)`,
			constraint: "i", want: "was refused for another reason than i (23505)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := kit(t, onPool(c.handler))
			k.Dedup = c.dedup
			if c.constraint != "" {
				k.Constraints = []string{c.constraint}
				c.after += `; DROP TABLE processed_events`
			}
			k.Setup = func(ctx context.Context, pool *pgxpool.Pool) error {
				if err := setup(ctx, pool); err != nil {
					return err
				}
				_, err := pool.Exec(ctx, c.after)
				return err
			}
			message := failure(t, func(tb idemtest.TB) { k.Backed(tb) })
			if c.want == "" {
				require.Empty(t, message)
				return
			}
			require.Contains(t, message, c.want)
		})
	}
}

func TestConcurrentFinds(t *testing.T) {
	t.Parallel()
	message := failure(t, func(tb idemtest.TB) { kit(t, onPool(noKey)).Concurrent(tb) })
	require.Contains(t, message, "24 deliveries of 2 events by 8 workers")
	require.Contains(t, message, "rows of ledger too many")
}

func TestLoad(t *testing.T) {
	t.Parallel()
	k := kit(t, sound)
	k.Duration, k.Workers = time.Second, 4
	k.Event = func(n int) payment {
		return payment{ID: "load_" + time.Unix(int64(n), 0).UTC().Format(time.RFC3339), Account: "alice", Amount: 1}
	}
	r := k.Load(t)
	for _, l := range []idemtest.Latency{r.Fresh, r.Hot} {
		require.Positive(t, l.Deliveries)
		require.Positive(t, l.Rate)
		require.LessOrEqual(t, l.Rate, float64(l.Deliveries)/0.5,
			"each half lasts for half of the second, or longer where the machine is slow")
		require.Positive(t, l.P50)
		require.GreaterOrEqual(t, l.P95, l.P50)
		require.GreaterOrEqual(t, l.P99, l.P95)
		require.GreaterOrEqual(t, l.Max, l.P99)
	}
	k.Handler = onPool(noKey)
	require.Contains(t, failure(t, func(tb idemtest.TB) { k.Load(tb) }), "rows of ledger too many")
}
