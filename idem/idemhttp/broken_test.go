package idemhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The middleware under everything that a client does: twice, at once, cut at every statement. See package idemtest.
func TestBroken(t *testing.T) {
	t.Parallel()
	config := idemhttp.Config{Caller: idemhttp.Anonymous, OnError: func(*http.Request, error) {}}
	for name, open := range map[string]func(db *idemtest.DB) (wrap, error){
		"pgx": func(db *idemtest.DB) (wrap, error) { return idemhttp.New(db.Pool(), idem.Once{}, config) },
		"sql": func(db *idemtest.DB) (wrap, error) { return idemhttp.NewSQL(db.SQL(), idemsql.Once{}, config) },
	} {
		t.Run(name, func(t *testing.T) {
			k := idemtest.Kit[string]{
				Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
					if err := dedup.Migrate(ctx, pool); err != nil {
						return err
					}
					_, err := pool.Exec(ctx, `CREATE TABLE effects (ref text)`)
					return err
				},
				Handler: idemtest.HTTP(
					func(key string) *http.Request {
						r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("b"))
						r.Header.Set("Idempotency-Key", key)
						return r
					},
					func(db *idemtest.DB) http.Handler {
						once, err := open(db)
						if err != nil {
							t.Error(err)
						}
						return once(http.HandlerFunc(pay))
					}),
				Deliveries: []string{"k1", "k2"},
			}
			if !idemtest.Child() {
				k.DSN = pgtest.DSN(t)
			}
			k.All(t)
		})
	}
}
