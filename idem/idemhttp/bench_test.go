package idemhttp_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What each part of a request costs, without a network: the claim, its limited wait, the stored response, the
// middleware around them; and a replay by the process that executed it, and by another one.
func BenchmarkRequest(b *testing.B) {
	pool := pgtest.Pool(b)
	require.NoError(b, dedup.Migrate(b.Context(), pool))
	_, err := pool.Exec(b.Context(), `CREATE TABLE payments (id bigserial PRIMARY KEY, cents int)`)
	require.NoError(b, err)
	scope := idem.Scope{Source: "http", Operation: "pay"}
	inside := func(once idem.Once) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			key := scope.Key(r.Header.Get("Idempotency-Key")).WithPayload(body)
			var v receipt
			_, err := once.Run(r.Context(), pool, key, func(ctx context.Context, tx pgx.Tx) (err error) {
				v, err = receive(ctx, tx)
				return err
			})
			answer(w, v, err)
		})
	}
	behind := func() http.Handler {
		once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{Caller: idemhttp.Anonymous})
		require.NoError(b, err)
		return once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := idemhttp.Tx(r.Context())
			v, err := receive(r.Context(), tx)
			answer(w, v, err)
		}))
	}
	returning := idem.Returning[receipt]{Once: idem.Once{MaxWait: time.Second}}
	one := behind()
	for _, bench := range []struct {
		name    string
		handler func() http.Handler
		key     func() string
	}{
		{"Run", func() http.Handler { return inside(idem.Once{}) }, rand.Text},
		{"RunMaxWait", func() http.Handler { return inside(idem.Once{MaxWait: time.Second}) }, rand.Text},
		{"Returning", func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				key := scope.Key(r.Header.Get("Idempotency-Key")).WithPayload(body)
				v, _, err := returning.Run(r.Context(), pool, key, receive)
				answer(w, v, err)
			})
		}, rand.Text},
		{"Middleware", func() http.Handler { return one }, rand.Text},
		{"Replay", func() http.Handler { return one }, func() string { return "known" }},
		{"ReplayElsewhere", behind, func() string { return "known" }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h := bench.handler()
				if w := local(h, bench.key(), `{"cents": 1200}`); w.Code != http.StatusCreated {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
