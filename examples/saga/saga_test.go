package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asProgram makes the test binary behave as the program, which starts itself as the worker.
const asProgram = "SAGA_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" && !idemtest.Child() {
		main()
		return
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// The program: killed at random, and every order is all done or all undone. Nothing is left to be done by hand.
func TestRun(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	var out strings.Builder
	require.NoError(t, run(t.Context(), config{dsn: dsn, orders: 35, kills: 4}, &out), "%s", &out)
	t.Log(out.String())
	counts := regexp.MustCompile(`(\d+) kills, (\d+) replies lost`).FindStringSubmatch(out.String())
	require.Len(t, counts, 3)
	for _, n := range counts[1:] {
		n, err := strconv.Atoi(n)
		require.NoError(t, err)
		require.Positive(t, n, "or this proves nothing")
	}
	// Of 35 orders 7 have a bad card, 5 a bad address, one of them both.
	require.Contains(t, out.String(), "    24 done")
	require.Contains(t, out.String(), "    11 undone: nothing shipped; of them 4 paid and refunded")
	require.Contains(t, out.String(), "    24 pieces")

	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	var open int
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT count(*) FROM processed_events WHERE lease_until IS NOT NULL`).Scan(&open))
	require.Zero(t, open, "keys that are reserved or unfinished")
}

// An order that is half done is noticed, in the books of each service.
func TestHalfDone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, pool *pgxpool.Pool, payment, shipping *service){
		"paid twice": func(_ *testing.T, _ *pgxpool.Pool, payment, _ *service) {
			payment.book("k", request{"p/1", 11, "card"})
		},
		"shipped twice": func(_ *testing.T, _ *pgxpool.Pool, _, shipping *service) {
			shipping.book("k", request{"p/1", 1, "address"})
		},
		"not refunded": func(_ *testing.T, _ *pgxpool.Pool, payment, _ *service) {
			payment.book("k", request{"p/5", 15, "card"})
		},
		"a piece lost": func(t *testing.T, pool *pgxpool.Pool, _, _ *service) {
			_, err := pool.Exec(t.Context(), `UPDATE saga_stock SET pieces = pieces - 1`)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			_, err := pool.Exec(t.Context(), schema)
			require.NoError(t, err)
			require.NoError(t, place(t.Context(), pool, "p", 5))
			payment, err := startService()
			require.NoError(t, err)
			defer payment.server.Close()
			shipping, err := startService()
			require.NoError(t, err)
			defer shipping.server.Close()
			_, err = pool.Exec(t.Context(), `
				UPDATE saga_orders SET state = CASE card WHEN 'card' THEN 'done' ELSE 'undone' END;
				UPDATE saga_stock SET pieces = 1`)
			require.NoError(t, err)
			for i, id := range []string{"p/1", "p/2", "p/3", "p/4"} {
				payment.book(id, request{id, int64(11 + i), "card"})
				shipping.book(id, request{id, 1, "address"})
			}
			var out strings.Builder
			require.NoError(t, prove(t.Context(), pool, payment, shipping, "p", &out), "%s", &out)
			spoil(t, pool, payment, shipping)
			require.ErrorIs(t, prove(t.Context(), pool, payment, shipping, "p", &out), errHalf)
		})
	}
}
