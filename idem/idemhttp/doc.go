// Package idemhttp makes an HTTP request happen once in PostgreSQL, however often its client sends it: middleware for
// the header Idempotency-Key and any http.Handler.
//
// The key, what the handler writes and its response are committed in one transaction, or not at all. The primary key
// of the table decides, as everywhere in package idem. The response is held back until COMMIT, so no client is told of
// what did not happen. A retry gets the stored response, byte for byte, and the handler does not run. What a handler
// does outside of its transaction is not promised; for that there is the reserving form.
//
// # Basic use
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
// The table is made by [github.com/pgonce/pgonce/dedup.Migrate]. A handler on database/sql takes [NewSQL] and [SQLTx].
//
// # Which requests are one
//
// Those with the same key, caller, method and route; see [Config]. The key is a string of Structured Fields ("abc", in
// quotes), as draft-ietf-httpapi-idempotency-key-header-07 wants it, or bare (abc), as Stripe's clients send it; both
// are one key. It has 1 to 255 characters of ASCII. The same key with another path, query or body is refused. The
// order of names in a query does not matter.
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
// A request that waits runs the handler where the one before it is rolled back. While it waits it holds a connection.
// Answers of the middleware's own are application/problem+json (RFC 9457). Their statuses are those of
// [idem.HTTPStatus].
//
// # What is kept
//
// That depends on the status; see [DefaultPolicy]. 2xx and 3xx are committed. A 4xx that only the request decides is
// kept, but what the handler wrote is rolled back. After 5xx, 401, 408, 409 and 429, after a panic, and where the
// client has gone, everything is rolled back and nothing is kept: a retry runs the handler.
//
// A kept response is read again by every retry until its key is purged. The retention of the table is the time that
// you promise to your clients, and publish.
//
// # What it costs
//
// With pgx, beside the handler's own statements, a first request takes three round trips: to begin and claim, to store
// the response, and to commit. A retry takes two, or one where it reaches the process that executed it, or that replayed
// it before. With an idem.Once.Observer it always takes two, so that the observer is told.
//
// # What a handler must know
//
//   - It may run more than once for one request: a transaction that meets a conflict (40001, 40P01) or loses its
//     connection begins anew. Each run gets the body from its beginning and an empty response; only the last run is
//     committed and sent. A handler that sees such an error itself says so by [Fail].
//   - Where it writes a success and then an error status, or not as many bytes as its Content-Length says, the client
//     gets a 500, and all is rolled back. A panic that something inside of the middleware recovers is not seen here:
//     let that answer with 5xx, or stand outside.
//   - It must not flush, hijack or upgrade: http.ResponseController returns an error of http.ErrNotSupported.
//   - Its response is in memory until COMMIT, and so is the request's body.
//   - It sees no Accept-Encoding: put middleware that compresses outside of this one, as well as what authenticates.
//     What reads the body belongs inside.
//
// # Effects outside of the database
//
// With a Lease, the handler runs in no transaction. A row is reserved before it and settled after it, as by
// [idem.Call]. The handler passes [Key].External() to its provider, and writes to the database in [Then]. Where it
// dies, or answers with what is not kept, the next request after the lease runs it again with the same external key,
// as long as the provider Remembers; else it gets 500, and the key waits for somebody who looks
// ([idem.Once.Pending]). An error before anything was sent is told by Fail(ctx, idem.Unsent(err)): then the next
// request begins anew. Requests beside a running one get 409 at once.
package idemhttp
