// Package webhook receives webhooks: it verifies a delivery, finds out which event it is, and makes the event's effect
// happen once in PostgreSQL, however often the sender delivers it.
//
// A [Handler] is an http.Handler for one endpoint. Its [Provider] knows the sender: [Stripe], [GitHub], [Standard], or
// your own. Its [Sink] takes the event: [Effect] runs your function by idem.Run, in the transaction that also holds the
// event's key. Not promised are order, and effects outside that transaction: a mail belongs into package dedup/outbox.
//
//	h := webhook.Handler{
//		Provider: webhook.Stripe{Secrets: []string{os.Getenv("STRIPE_SECRET")}},
//		Endpoint: "billing",
//		Sink:     webhook.Effect{DB: pool, Fn: book}, // func(ctx, tx pgx.Tx, e webhook.Event) error
//	}
//	err := h.Validate()    // at start
//	http.Handle("/stripe", h)
//
// [Inbox] stores the event, so that the sender is answered at once, and a worker of package inbox handles it later.
// [SinkFunc] makes a Sink of a function that gets the key, such as one that calls idemsql.Run.
//
// # Answers
//
// A sender repeats what got no 2xx, and some stop at a 4xx. So a 4xx is for what a repeat would meet again, and a 5xx
// for everything else that did not commit.
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
// A 503 has a Retry-After if the wait is known. An answer never says more than its status. An effect that panics aborts
// the connection, as in net/http. A signature that is too old gets a 401: whoever replays a captured request must not
// be told to go on. Stripe and Standard Webhooks repeat after a 401 as after a 500. 400 is never used: Apple is
// reported not to repeat after one.
//
// When the sender hangs up, the effect goes on to its end, or to [Handler].Timeout, and the retry finds it done.
//
// # Senders
//
// What each documents. [Sender].Table sets dedup.Table.Resends by it, and dedup.Verify reports a retention that is too
// short. The default retention covers all of them. The sources are with each type.
//
//	sender             id, unique                  repeats by itself        by hand       order  retention at least
//	Stripe             id in the body, per event   up to 3 days             30 days       none   30 days
//	GitHub             X-GitHub-Delivery, per      never                    3 days        none   3 days
//	                   event; not signed
//	Standard Webhooks  webhook-id, per message     the sender's matter;     the sender's  none   76 hours, or what
//	                                               75 h 35 min in the spec                       the sender says
//
// # Keys
//
// An event's key is (source, endpoint, id): the sender's name, [Handler].Endpoint as the operation, and the id. Two
// endpoints are two effects: each runs once, though both get the event. Several servers of one endpoint share its name.
// Nothing else of a delivery decides about a duplicate: no header that counts retries, no signature or its time, and no
// hash of the body, which may differ from attempt to attempt.
//
// # Bodies
//
// The body is read whole, up to MaxBody, before the sender is known. So a request can hold about twice that for as long
// as ReadTimeout; the http.Server, or a proxy before it, limits how many do. Nothing of a body is looked at before its
// signature was found good.
package webhook
