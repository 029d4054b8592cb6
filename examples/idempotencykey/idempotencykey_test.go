package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestRouters(t *testing.T) {
	for _, router := range []string{"chi", "gin", "echo"} {
		t.Run(router, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			require.NoError(t, setUp(t.Context(), pool))
			api, err := newAPI(pool, router)
			require.NoError(t, err)
			srv := httptest.NewServer(api)
			t.Cleanup(srv.Close)
			post := func(account, key, body string) (int, string, bool) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/payments", strings.NewReader(body))
				require.NoError(t, err)
				req.SetBasicAuth(account, "")
				req.Header.Set("Idempotency-Key", key)
				resp, err := srv.Client().Do(req)
				require.NoError(t, err)
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return resp.StatusCode, strings.TrimSpace(string(b)), resp.Header.Get("Idempotent-Replayed") == "true"
			}
			type got struct {
				status   int
				body     string
				replayed bool
			}
			for _, c := range []struct {
				account, key, body string
				want               got
			}{
				{"alice", `"k"`, `{"cents":5}`, got{201, `{"id":1,"account":"alice","cents":5}`, false}},
				{"alice", `k`, `{"cents":5}`, got{201, `{"id":1,"account":"alice","cents":5}`, true}},
				{"bob", `"k"`, `{"cents":5}`, got{201, `{"id":2,"account":"bob","cents":5}`, false}},
				{"bob", `"no"`, `{"cents":0}`, got{422, `{"error":"cents must be positive"}`, false}},
				{"bob", `"no"`, `{"cents":0}`, got{422, `{"error":"cents must be positive"}`, true}},
			} {
				status, body, replayed := post(c.account, c.key, c.body)
				require.Equal(t, c.want, got{status, body, replayed})
			}
			status, _, _ := post("bob", `"k"`, `{"cents":6}`)
			require.Equal(t, http.StatusUnprocessableEntity, status)

			// A server's error leaves nothing, whatever way the router takes to answer it.
			_, err = pool.Exec(t.Context(), `ALTER TABLE idempotencykey_payments ADD CHECK (cents <> 7)`)
			require.NoError(t, err)
			status, _, replayed := post("bob", `"seven"`, `{"cents":7}`)
			require.Equal(t, []any{500, false}, []any{status, replayed})
			require.Equal(t, []int{2, 3}, []int{
				count(t.Context(), t, pool, "idempotencykey_payments"), count(t.Context(), t, pool, "processed_events"),
			})
		})
	}
}

func count(ctx context.Context, t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM `+table).Scan(&n))
	return n
}
