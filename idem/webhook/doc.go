// Package webhook receives webhooks: it verifies a delivery, finds out which event it is, and makes the event's effect
// happen once in PostgreSQL, however often the sender delivers it.
//
// A [Handler] is an http.Handler for one endpoint. Its [Provider] knows the sender: [Stripe], [GitHub], [Standard],
// or one of your own. Its [Sink] takes the event: [Effect] runs your function by idem.Run, in the transaction that
// also holds the event's key. The primary key of the dedup table is the guarantee; see package idem. What is not
// promised is order, and an effect outside of that transaction: a mail belongs into package dedup/outbox.
//
//	h := webhook.Handler{
//		Provider: webhook.Stripe{Secrets: []string{os.Getenv("STRIPE_SECRET")}},
//		Endpoint: "billing",
//		Sink:     webhook.Effect{DB: pool, Fn: book}, // func(ctx, tx pgx.Tx, e webhook.Event) error
//	}
//	err := h.Validate()    // at start
//	http.Handle("/stripe", h)
//
// # Answers
//
// A sender repeats what it did not get a 2xx for, and some stop at a 4xx. So a 4xx is for what the same delivery,
// sent again, would meet again. Everything that did not commit for another reason is a 5xx.
//
//	answer  when                                                       committed?
//	200     the effect happened in this call, or had happened before   yes
//	204     a challenge of Standard Webhooks, which is no event        nothing to
//	401     the signature is missing or wrong, or too old: see below   no
//	405     not a POST                                                 no
//	413     the body is longer than MaxBody                            no
//	422     authentic, but of no use: no id, or one that no key can    no
//	        hold; idem.ErrExpired, idem.ErrPayloadMismatch, or a
//	        final failure of a Sink of your own
//	500     the effect's own error; a fault of the setup, of the       no
//	        table, or of the Handler's fields
//	503     another delivery of the event is at work; the database is  no, or unknown: the next
//	        away, or did not answer the COMMIT; the body stopped       delivery finds out
//
// A 503 has a Retry-After where the wait is known. An answer never says more than its status. An effect that panics
// aborts the connection, as in net/http: the sender repeats.
//
// A signature that is too old gets a 401 though a retry, signed anew, might pass: whoever replays a captured request
// must not be told to go on. Stripe and Standard Webhooks repeat after a 401 as after a 500. 400 is never used: Apple
// is reported not to repeat after one.
//
// When the sender hangs up, the effect goes on to its end, or to [Handler].Timeout: the retry finds it done. GitHub
// does not retry by itself, so an effect that is stopped with the connection would be lost.
//
// # Senders
//
// What each of them documents, and so what a table has to do. [Sender].Table sets dedup.Table.Resends; Verify of
// package dedup then reports a retention that is too short. The default retention covers all of them.
//
//	sender             id, unique                  repeats by itself        by hand       order  retention at least
//	Stripe             id in the body, per event   up to 3 days             30 days       none   30 days
//	GitHub             X-GitHub-Delivery, per      never                    3 days        none   3 days
//	                   event; not signed
//	Standard Webhooks  webhook-id, per message     the sender's matter;     the sender's  none   76 hours, or what
//	                                               75 h 35 min in the spec                       the sender says
//
// The sources are with each type. The time of an event ([Event].Time) is for a guard against late events, as in package
// upsert, as far as the type's comment says.
//
// # Keys
//
// An event's key is (source, endpoint, id). The source is the sender's name, the [Handler].Endpoint is the operation.
// Two endpoints are two effects: each runs once, though both get the event. Shopify, for one, sends an event once for
// each subscription to it. Where several servers serve one endpoint, its name is the same on all.
//
// Nothing else of a delivery decides about a duplicate: neither a header that counts retries, for the first attempt
// may have failed, nor a signature or its time, which are new each time, nor a hash of the body, which may differ
// from attempt to attempt (Stripe's counts the deliveries that are pending).
//
// # Bodies
//
// The body is read whole, up to MaxBody, before anything is known about the sender. So a request can hold about twice
// that for as long as ReadTimeout. How many at once is the http.Server's matter, or that of a proxy before it.
// Nothing of a body is looked at before its signature was found good.
//
// # An inbox, database/sql
//
// [Inbox] stores the event and returns: the sender is answered at once, and a worker of package inbox handles it later, as
// often as it takes. [SinkFunc] makes a Sink of a function that gets the key: one that calls idemsql.Run, for instance.
package webhook
