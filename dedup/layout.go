package dedup

import "github.com/pgonce/pgonce/internal/schema"

// Layout is how a table is laid out on disk: [Plain], the zero value, [Weekly], or what [Hash] returns. A table keeps
// the layout that it was made with; folder layouts, beside this file, has the SQL to change it.
type Layout int

// Plain is one ordinary table with one index.
const Plain Layout = 0

// Hash returns the layout of a table in n partitions, from 2 to 1,024, by hash of the key. The primary key is
// [Plain]'s, and holds over all partitions: equal keys meet in one. Statements and round trips are the same.
// [Table.Validate] refuses any other n.
//
// It makes VACUUM and REINDEX take one partition at a time, and dumps several at once. It does not make claims faster.
// With 8 workers on 2 cores, 8 and 32 partitions made 0.81 to 0.94 of Plain's rate with scattered keys (100,000 to ten
// million; Plain made 7,400 to 9,700 claims a second), and 0.86 to 1.1 with ascending ones. Machines with more cores
// were not measured.
func Hash(n int) Layout { return Layout(schema.Hash(n)) }

// Weekly is for keys whose time never changes between retries: with another time, the same message is taken for a new
// one. The table is partitioned by the week (from Monday, in UTC) of the event's own time. [Table.Maintain] drops an
// expired week at once.
//
// The time is the one inside a UUIDv7 (36 characters) or a ULID that is the key's last or only part, else
// idem.Key.OccurredAt's. A key with neither, or with two that differ, is an *idem.KeyError before any SQL.
//
//   - With the time inside the key, two CHECKs make the bucket a function of the key. The primary key, (key, operation,
//     source, bucket), is then the whole guarantee, as in the other layouts.
//   - With OccurredAt there is one effect for each key and week of its time. That suits a sender who states the time of
//     the event (Pub/Sub's publish time, Apple's signedDate), not one who states that of the attempt.
//
// A key whose time lies before the retention gets idem.ErrExpired, unless its row is still there; one more than 24
// hours in the future idem.ErrFuture, by the database's clock. A claim whose week has no partition fails with an error
// that names the table: run Maintain, or [Migrate]. Both make the partitions of 8 weeks ahead. (A new table also gets
// one for each week of its Retention: years are hundreds of tables.)
//
// Measured as [Hash] was, claims have 0.64 to 0.79 of Plain's rate. Deleting, and VACUUM after it, are spared.
const Weekly Layout = Layout(schema.Weekly)
