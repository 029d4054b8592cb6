// Package idemhttp makes an HTTP request happen once in PostgreSQL, however often its client sends it: middleware for
// the header Idempotency-Key and any http.Handler.
//
// The key, what the handler writes and its response are committed in one transaction, or not at all. The response is
// held back until COMMIT. A retry gets the stored response, byte for byte, and the handler does not run. For effects
// outside the transaction there is the reserving form.
//
//	once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{
//		Caller: func(r *http.Request) (string, error) { return accountOf(r.Context()) },
//	})
//	...
//	mux.Handle("POST /payments", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		tx, _ := idemhttp.Tx(r.Context())
//		...
//	})))
//
// [github.com/pgonce/pgonce/dedup.Migrate] makes the table. A handler on database/sql takes [NewSQL] and [SQLTx].
//
// # Which requests are one
//
// Those with the same key, caller, method and route; see [Config]. The key is a string of Structured Fields ("abc", in
// quotes), as draft-ietf-httpapi-idempotency-key-header-07 wants it, or bare (abc), as Stripe's clients send it; both
// are one key. It has 1 to 255 characters of ASCII. The same key with another path, query or body is refused. The order
// of names in a query does not matter.
//
// # What the client gets
//
//	first request               the handler's response, after COMMIT
//	retry                       the same status, body and kept headers, with Idempotent-Replayed: true
//	no key, or a malformed one  400
//	no caller                   403
//	body too large, too slow    413, 408; or 400 where it breaks off
//	while another one runs      it waits for Once.MaxWait; then 409, with Retry-After
//	another payload             422
//	response was not kept       410: it was larger than MaxResponse, or had a Content-Encoding of its own
//	COMMIT failed               500, or 503 with Retry-After; nothing is kept
//	COMMIT was not answered     503 with Retry-After, and the problem "unknown"; a retry gets the right answer
//
// A request that waits holds a connection, and runs the handler if the one before it is rolled back. The middleware's
// own answers are application/problem+json (RFC 9457), with the statuses of [idem.HTTPStatus].
//
// # What is kept
//
// 2xx and 3xx. Of a 4xx that only the request decides, the response alone; see [DefaultPolicy]. Of 5xx, 401, 408, 409
// and 429, of a panic, and if the client has gone, nothing: a retry runs the handler.
//
// Every retry gets a kept response until its key is purged. The table's retention is the time that you promise to your
// clients: publish it.
//
// # What it costs
//
// With pgx, beside the handler's own statements, a first request takes three round trips: to begin and claim, to store
// the response, and to commit. A retry takes two, or one where it reaches the process that executed it, or that
// replayed it before. With an idem.Once.Observer it always takes two, so that the observer is told.
//
// # What a handler must know
//
//   - It may run more than once for one request: after a conflict (40001, 40P01) or a lost connection the transaction
//     begins anew. Each run gets the whole body and an empty response; only the last is committed and sent. A handler
//     that sees such an error itself says so by [Fail].
//   - If it writes a success and then an error status, or not as many bytes as its Content-Length says, the client gets
//     a 500, and all is rolled back. A panic that is recovered inside the middleware is not seen: let that answer with
//     5xx, or stand outside.
//   - It must not flush, hijack or upgrade: http.ResponseController returns an error of http.ErrNotSupported.
//   - Its response, and the request's body, are in memory until COMMIT.
//   - It sees no Accept-Encoding. Put outside what compresses and what authenticates, and inside what reads the body.
//
// # Effects outside the database
//
// With a Lease, the handler runs in no transaction: a row is reserved before it and settled after it, as by
// [idem.Call]. The handler passes [Key].External() to its provider, and writes to the database in [Then]. If it dies,
// or its answer is not kept, the next request after the lease runs it again with the same external key, while the
// provider Remembers. Later that gets 500, and the key waits for somebody who looks ([idem.Once.Pending]). Fail(ctx,
// idem.Unsent(err)) tells of an error before anything was sent: the next request begins anew. Requests beside a running
// one get 409 at once.
package idemhttp
