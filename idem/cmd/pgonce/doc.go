// Command pgonce is for those who operate a database that pgonce works in: it shows the tables, settles what nobody
// else settles, and keeps them in order.
//
//	go install github.com/pgonce/pgonce/idem/cmd/pgonce@latest
//	export DATABASE_URL=postgres://...
//	pgonce verify
//	pgonce pending
//	pgonce settle stripe charge evt_1 --void --reason "no charge at Stripe, looked on 2 March"
//
// # Connection
//
// DATABASE_URL, and else the variables of libpq (PGHOST, PGUSER, PGSERVICE and so on). Neither is ever printed.
//
// # What writes
//
// migrate, settle, forget, purge, maintain, inbox replay, inbox discard, outbox retry and outbox discard. Each says
// first what it will write, and asks. --yes answers for scripts; without it, and without a terminal, nothing is
// written.
//
// # Output and exit status
//
// A table for people, and with --json one JSON document. What was asked and answered goes to standard error.
//
//	0  it is done, or there is nothing to report
//	1  something to look at: Verify has problems, a key is not there, somebody else was faster
//	2  the command line is wrong, or a writing command was not confirmed
//	3  the database, or the connection to it, failed
package main
