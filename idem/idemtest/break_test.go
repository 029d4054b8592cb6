package idemtest_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The code of the page BREAK.md. TestBreakPage holds the page against it, and against what it prints.

const shopSchema = `
CREATE TABLE shipments (event_id text NOT NULL, item text NOT NULL);
CREATE TABLE stock (item text PRIMARY KEY, pieces int NOT NULL);
INSERT INTO stock VALUES ('lamp', 100)`

type OrderPaid struct{ ID, Item string }

func Handle(ctx context.Context, pool *pgxpool.Pool, e OrderPaid) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var shipped bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM shipments WHERE event_id = $1)`, e.ID).Scan(&shipped)
		if err != nil || shipped {
			return err // a redelivery: nothing to do
		}
		return ship(ctx, tx, e)
	})
}

func ship(ctx context.Context, tx pgx.Tx, e OrderPaid) error {
	if _, err := tx.Exec(ctx, `INSERT INTO shipments (event_id, item) VALUES ($1, $2)`, e.ID, e.Item); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = $1`, e.Item)
	return err
}

func testOrdinary(t *testing.T, pool *pgxpool.Pool, handle func(context.Context, *pgxpool.Pool, OrderPaid) error) {
	for range 2 { // the second one is a redelivery
		if err := handle(t.Context(), pool, OrderPaid{"evt_1", "lamp"}); err != nil {
			t.Fatal(err)
		}
	}
	var pieces int
	if err := pool.QueryRow(t.Context(), `SELECT pieces FROM stock`).Scan(&pieces); err != nil || pieces != 99 {
		t.Fatalf("%d pieces left, error %v", pieces, err)
	}
}

func shopKit(dsn, schema string, handle func(context.Context, *pgxpool.Pool, OrderPaid) error) idemtest.Kit[OrderPaid] {
	return idemtest.Kit[OrderPaid]{
		DSN: dsn,
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			if err := dedup.Migrate(ctx, pool); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, schema)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, OrderPaid) error {
			pool := db.Pool()
			return func(ctx context.Context, e OrderPaid) error { return handle(ctx, pool, e) }
		},
		Deliveries: []OrderPaid{{"evt_1", "lamp"}, {"evt_2", "lamp"}},
	}
}

func HandleUnique(ctx context.Context, pool *pgxpool.Pool, e OrderPaid) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return ship(ctx, tx, e) })
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "23505" {
		return nil // a redelivery: nothing to do
	}
	return err
}

var shipments = idem.Scope{Source: "orders", Operation: "ship"}

func HandleOnce(ctx context.Context, pool *pgxpool.Pool, e OrderPaid) error {
	_, err := idem.Run(ctx, pool, shipments.Key(e.ID), func(ctx context.Context, tx pgx.Tx) error {
		return ship(ctx, tx, e)
	})
	return err
}

// TestBreakPage does what the page says, and compares.
func TestBreakPage(t *testing.T) {
	t.Parallel()
	const unique = shopSchema + `; ALTER TABLE shipments ADD UNIQUE (event_id)`
	outputs := map[string]string{}
	for name, c := range map[string]struct {
		schema string
		handle func(context.Context, *pgxpool.Pool, OrderPaid) error
	}{"looks": {shopSchema, Handle}, "unique": {unique, HandleUnique}, "once": {shopSchema, HandleOnce}} {
		if idemtest.Child() {
			break // only TestBreakPageMended is killed
		}
		pool := pgtest.Pool(t)
		_, err := pool.Exec(t.Context(), c.schema)
		require.NoError(t, err)
		require.NoError(t, dedup.Migrate(t.Context(), pool))
		testOrdinary(t, pool, c.handle)
		if name == "once" {
			continue
		}
		r := &named{recorder{t: t}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			shopKit(pgtest.DSN(t), c.schema, c.handle).All(r)
		}()
		<-done
		outputs[name] = r.failed
	}
	page, err := os.ReadFile("BREAK.md")
	require.NoError(t, err)
	source, err := os.ReadFile("break_test.go")
	require.NoError(t, err)
	var texts []string
	for _, block := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		switch block[1] {
		case "go", "sql":
			require.Contains(t, squeezed(string(source)), squeezed(block[2]))
		case "text":
			texts = append(texts, strings.TrimSpace(block[2]))
		}
	}
	require.Len(t, texts, 2)
	require.Equal(t, texts[0], unchanging(outputs["looks"]))
	require.Equal(t, texts[1], unchanging(outputs["unique"]))
}

func TestBreakPageMended(t *testing.T) {
	t.Parallel()
	dsn := ""
	if !idemtest.Child() {
		dsn = pgtest.DSN(t)
	}
	shopKit(dsn, shopSchema, HandleOnce).All(t)
}

// named has the name of the test on the page.
type named struct{ recorder }

func (*named) Name() string { return "TestHandleBroken" }

func squeezed(s string) string { return strings.Join(strings.Fields(s), " ") }

// unchanging replaces what is new in every run.
func unchanging(s string) string {
	for _, r := range [][2]string{
		{`seed \d+`, "seed 7"},
		{`IDEMTEST_SEED=\d+`, "IDEMTEST_SEED=7"},
		{`idemtest_\w+`, "idemtest_5e0c1d7a_20261130t141516_k3vq7m2x_2"},
		{`made 8 times at once: \d+ rows`, "made 8 times at once: 7 rows"},
		{`\(\d+ times\)`, "(7 times)"},
		{`"pieces":\d[0-8]?}`, `"pieces":92}`},
		{`github.com/\S+/idemtest`, "example.com/shop"},
		{"\t", "    "},
	} {
		s = regexp.MustCompile(r[0]).ReplaceAllString(s, r[1])
	}
	return s
}
