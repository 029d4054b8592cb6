package dedup

import "github.com/pgonce/pgonce/internal/schema"

// Layout is how a table is laid out on disk: [Plain], [Weekly], or what [Hash] returns. The zero value is Plain. A table keeps the
// layout that it was made with; folder layouts beside this package holds the SQL to change it.
type Layout int

// Plain is one ordinary table with one index.
const Plain Layout = 0

// Hash returns the layout of a table in n partitions, from 2 to 1,024, by hash of the key. The primary key is the same as
// [Plain]'s, (key, operation, source), and holds over all partitions: equal keys have the same hash, so that they meet in
// one partition. Everything works as with Plain, with the same statements and round trips. Any other n gives a Layout that
// [Table.Validate] refuses.
//
// Do not expect claims to be faster. Measured with 8 workers on a busy machine of 2 cores, on tables of 100,000 and of a
// million keys, the rate of 8 or 32 partitions could not be told from Plain's: the medians were 0.7 to 1.3 of it, and what
// else the machine did made more of a difference. Larger tables, and machines with more cores, were not measured. What it
// does give is indexes that are smaller, and a VACUUM that takes one partition at a time.
func Hash(n int) Layout { return Layout(schema.Hash(n)) }

// Weekly is for keys whose time never changes between retries: one that changes breaks the key, for the same message is then
// taken for a new one. The table is partitioned by the week (from Monday, in UTC) of the event's own time, so that what has
// expired is dropped a week at a time, by [Table.Maintain], without deleting a row.
//
// The time is the one inside of a UUIDv7 (36 characters) or a ULID that is the key's last or only part; of any other key it
// is what idem.Key.OccurredAt says. A key that has neither is refused with an *idem.KeyError before any SQL, and so is one
// that has both and they differ.
//
//   - With the time inside of the key, two CHECKs make the bucket a function of the key. The primary key, (key, operation,
//     source, bucket), is then the whole guarantee, as in the other layouts.
//   - With OccurredAt there is one effect for each key and week of its time. That is enough for a sender who states the time
//     of the event (Pub/Sub's publish time, Apple's signedDate), and not for one who states that of the attempt.
//
// A key whose time lies before the retention gets idem.ErrExpired, unless its row is still there; one that is more than 24
// hours in the future idem.ErrFuture. The database's clock decides. A claim whose week has no partition fails with an error
// that names the table: Maintain must run, or [Migrate], which makes the partitions of 8 weeks ahead as well.
//
// A claim costs more than Plain's: its statement took 1.5 to 2 times as long on a busy machine, about 0.1 ms more, for the
// server finds the partition and reads the CHECKs anew for each statement. What it spares is deleting, and VACUUM after it.
const Weekly Layout = Layout(schema.Weekly)
