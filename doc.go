// Package pgonce is the root of a library that makes the effect of a message, a webhook or an API call happen once in
// PostgreSQL, however often it is delivered. It holds no code; what you import is below it.
//
// Networks retry, payment providers send twice, and consumers die between the write and the acknowledgement:
// at-least-once is the only delivery worth designing for. pgonce builds exactly-once results on it from a unique
// constraint, in the same transaction as the effect, and never from a read before the write.
//
//   - [github.com/pgonce/pgonce/idem]: run an effect once for a key, in your transaction or in one of its own.
//   - [github.com/pgonce/pgonce/dedup]: the table behind it: make it, and prove its constraint.
//   - [github.com/pgonce/pgonce/upsert]: upserts that only move forward: a late event never overwrites a newer one.
//   - [github.com/pgonce/pgonce/pgerr]: SQLSTATEs, a unique violation as success, and the three answers of COMMIT.
//
// Run "go run ./examples/quickstart" from a checkout to see it work.
package pgonce
