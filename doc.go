// Package pgonce is the root of a library that makes the effect of a message, a webhook or an API call happen once in
// PostgreSQL, however often it is delivered. It holds no code; import what is below it:
//
//   - [github.com/pgonce/pgonce/idem]: run an effect once for a key, in your transaction or in one of its own.
//   - [github.com/pgonce/pgonce/dedup]: the table behind it: make it, and prove its constraint.
//   - [github.com/pgonce/pgonce/upsert]: upserts that only move forward: a late event never overwrites a newer one.
//   - [github.com/pgonce/pgonce/pgerr]: SQLSTATEs, a unique violation as success, and the three answers of COMMIT.
//
// Once is built on at-least-once delivery, from a unique constraint, in the same transaction as the effect. Never
// from a read before the write. Run "go run ./examples/quickstart" from a checkout to see it work.
package pgonce
