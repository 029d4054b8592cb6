package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/moov-io/base/idempotent"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
)

// servers serve the API behind each middleware, until ctx ends.
var servers = map[string]func(ctx context.Context, l net.Listener, pool *pgxpool.Pool) error{
	"pgonce": servePgonce, "fiber": serveFiber, "moov": serveMoov,
}

// rest is what a handler still does after its effect: time enough to die in.
const rest = 30 * time.Millisecond

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// pay makes a payment by db, which is the database or a transaction.
func pay(w http.ResponseWriter, r *http.Request, db querier) {
	var p struct {
		ID    int64 `json:"id"`
		Cents int64 `json:"cents"`
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	err := db.QueryRow(r.Context(), `
		INSERT INTO keymiddlewares_payments (cents) VALUES ($1::bigint) RETURNING id`, p.Cents).Scan(&p.ID)
	if err != nil {
		idemhttp.Fail(r.Context(), err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	time.Sleep(rest)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(p)
}

// plain is the handler as it is written for the others: nothing of theirs is for a transaction.
func plain(pool *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { pay(w, r, pool) }
}

func servePgonce(ctx context.Context, l net.Listener, pool *pgxpool.Pool) error {
	once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{Caller: func(r *http.Request) (string, error) {
		name, _, ok := r.BasicAuth()
		if !ok {
			return "", errors.New("no account")
		}
		return name, nil
	}})
	if err != nil {
		return err
	}
	return serveHTTP(ctx, l, once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idemhttp.Tx(r.Context())
		pay(w, r, tx)
	})))
}

// serveFiber has the middleware of Fiber, with a store that outlives the process. By default it takes any key of 36
// characters, which a UUID in quotes has not.
func serveFiber(ctx context.Context, l net.Listener, pool *pgxpool.Pool) error {
	app := fiber.New()
	app.Post("/payments", idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil }, Storage: store{pool: pool},
	}), adaptor.HTTPHandler(plain(pool)))
	return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true, GracefulContext: ctx})
}

// serveMoov has the functions of moov-io/base, as that package's own handlers use them. Its header is
// X-Idempotency-Key. The recorder is of the best kind that its interface allows: one atomic statement.
func serveMoov(ctx context.Context, l net.Listener, pool *pgxpool.Pool) error {
	next := plain(pool)
	return serveHTTP(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, seen := idempotent.FromRequest(r, recorder{r.Context(), pool}); seen {
			idempotent.SeenBefore(w)
			return
		}
		next(w, r)
	}))
}

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// store keeps Fiber's responses. The methods that its middleware does not call are missing.
type store struct {
	fiber.Storage
	pool *pgxpool.Pool
}

func (s store) GetWithContext(ctx context.Context, key string) (value []byte, err error) {
	err = s.pool.QueryRow(ctx, `SELECT value FROM keymiddlewares_seen WHERE key = $1::text`, key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

func (s store) SetWithContext(ctx context.Context, key string, value []byte, _ time.Duration) error {
	_, err := s.pool.Exec(ctx, `
		INSERT INTO keymiddlewares_seen (key, value) VALUES ($1::text, $2::bytea)
		ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return err
}

// recorder remembers moov's keys.
type recorder struct {
	ctx  context.Context
	pool *pgxpool.Pool
}

func (r recorder) SeenBefore(key string) bool {
	tag, err := r.pool.Exec(r.ctx, `
		INSERT INTO keymiddlewares_seen (key, value) VALUES ($1::text, '') ON CONFLICT (key) DO NOTHING`, key)
	return err != nil || tag.RowsAffected() == 0 // the interface knows no error
}
