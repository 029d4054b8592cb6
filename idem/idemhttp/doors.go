package idemhttp

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// New returns the middleware over pgx. once holds the settings of the database; a MaxWait of 0 means one second here,
// and a negative one as long as the request lasts. An error means that c is wrong, or the table: one of layout
// dedup.Weekly, whose keys need a time.
//
// The middleware is safe for concurrent use if db is. Each wrapped handler may serve any number of routes.
func New(db idem.DB, once idem.Once, c Config) (func(http.Handler) http.Handler, error) {
	once.MaxWait = or(once.MaxWait, defaultMaxWait)
	var look lookup
	if once.Observer == nil {
		look = func(ctx context.Context, key idem.Key) (idem.Record, error) { return once.Lookup(ctx, db, key) }
	}
	return wrapper(c, once.Table, db == nil, door{
		look: look,
		run: func(ctx context.Context, key idem.Key, fn effect) (stored, idem.Outcome, error) {
			return idem.Returning[stored]{Once: once}.Run(ctx, db, key, func(ctx context.Context, tx pgx.Tx) (stored, error) {
				return fn(ctx, &request{key: key, pgx: tx})
			})
		},
		call: func(ctx context.Context, key idem.Key, fn effect) (stored, idem.Outcome, error) {
			r := &request{key: key}
			return idem.Call[stored]{
				Once: once, Lease: c.Lease, Remembers: c.Remembers,
				Send: func(ctx context.Context, _ string) (stored, error) { return fn(ctx, r) },
				Apply: func(ctx context.Context, tx pgx.Tx, _ stored) error {
					return r.apply(ctx, &request{key: key, pgx: tx})
				},
			}.Run(ctx, db, key)
		},
	})
}

// NewSQL returns the middleware over database/sql; else it is as [New].
func NewSQL(db idemsql.DB, once idemsql.Once, c Config) (func(http.Handler) http.Handler, error) {
	once.MaxWait = or(once.MaxWait, defaultMaxWait)
	var look lookup
	if conn, ok := db.(idemsql.Conn); ok && once.Observer == nil {
		look = func(ctx context.Context, key idem.Key) (idem.Record, error) { return once.Lookup(ctx, conn, key) }
	}
	return wrapper(c, once.Table, db == nil, door{
		look: look,
		run: func(ctx context.Context, key idem.Key, fn effect) (stored, idem.Outcome, error) {
			return idemsql.Returning[stored]{Once: once}.Run(ctx, db, key,
				func(ctx context.Context, tx idemsql.Tx) (stored, error) {
					return fn(ctx, &request{key: key, sql: tx})
				})
		},
		call: func(ctx context.Context, key idem.Key, fn effect) (stored, idem.Outcome, error) {
			r := &request{key: key}
			return idemsql.Call[stored]{
				Once: once, Lease: c.Lease, Remembers: c.Remembers,
				Send: func(ctx context.Context, _ string) (stored, error) { return fn(ctx, r) },
				Apply: func(ctx context.Context, tx idemsql.Tx, _ stored) error {
					return r.apply(ctx, &request{key: key, sql: tx})
				},
			}.Run(ctx, db, key)
		},
	})
}

// lookup reads a key's row. It is nil where an observer is to be told of every call: a look is none.
type lookup func(ctx context.Context, key idem.Key) (idem.Record, error)

// door is a way to the database.
type door struct {
	look lookup

	run, call func(ctx context.Context, key idem.Key, fn effect) (stored, idem.Outcome, error)
}

// effect runs the handler.
type effect func(ctx context.Context, r *request) (stored, error)

// request is what the handler's context holds.
type request struct {
	key   idem.Key
	pgx   pgx.Tx
	sql   idemsql.Tx
	then  func(ctx context.Context) error
	cause error // what Fail was told
}

// apply runs what Then has set, with what its context shall hold.
func (r *request) apply(ctx context.Context, within *request) error {
	if r.then == nil {
		return nil
	}
	if err := r.then(context.WithValue(ctx, requestKey{}, within)); err != nil {
		return &applied{err}
	}
	return nil
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// Tx returns the transaction in which the handler runs. It is committed with the key and the response, or not at all;
// the handler does not end it. ok is false outside the middleware of [New], for a method that needs no key, and in the
// reserving form outside [Then].
func Tx(ctx context.Context) (tx pgx.Tx, ok bool) {
	if r := requestOf(ctx); r != nil && r.pgx != nil {
		return r.pgx, true
	}
	return nil, false
}

// SQLTx is [Tx] for the middleware of [NewSQL].
func SQLTx(ctx context.Context) (tx idemsql.Tx, ok bool) {
	if r := requestOf(ctx); r != nil && r.sql != nil {
		return r.sql, true
	}
	return nil, false
}

// Key returns the key of a request. In the reserving form the handler passes Key.External() to the provider. ok is
// false outside the middleware, and for a method that needs no key.
func Key(ctx context.Context) (key idem.Key, ok bool) {
	if r := requestOf(ctx); r != nil {
		return r.key, true
	}
	return idem.Key{}, false
}

// Fail tells the middleware what made the handler answer with an error. Whatever the response, nothing is kept and what
// was written is rolled back.
//
//   - If err is a conflict with another transaction (40001, 40P01) or a lost connection, the response is dropped, and
//     the handler runs again in a new transaction. Without Fail such an error is the handler's own 500.
//   - In the reserving form an error marked by idem.Unsent or idem.Final means what it means for [idem.Call].Send.
//
// A response below 400 is not sent after Fail: 500 is, or 503 if err is Retryable for idem. Outside the middleware Fail
// does nothing.
func Fail(ctx context.Context, err error) {
	if r := requestOf(ctx); r != nil && err != nil {
		r.cause = err
	}
}

// Then sets, in the reserving form, what is written to the database with the response. fn runs after the handler, in
// the transaction that settles the key, which it gets by [Tx] or [SQLTx] from its ctx. It may run more than once, and
// does not run if the response is not one of [Commit]. An error of fn leaves the key to the next request, and is
// answered as one given to Fail. In the other form, and outside the middleware, Then does nothing.
func Then(ctx context.Context, fn func(ctx context.Context) error) {
	if r := requestOf(ctx); r != nil {
		r.then = fn
	}
}
