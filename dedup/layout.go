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
// It does not make claims faster. With 8 workers on a machine of 2 cores, tables of 8 and of 32 partitions made 0.81 to 0.94 of
// Plain's rate with 100,000, one million and ten million keys (7,400 to 9,700 claims a second in Plain, scattered keys), and
// 0.86 to 1.1 with ascending ones: no size and no rate was found from which it pays. Machines with more cores were not
// measured. What it does give is VACUUM and REINDEX that take one partition at a time, and dumps that take several at once.
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
// that names the table: Maintain must run, or [Migrate], which makes the partitions of 8 weeks ahead as well. (A new table gets one
// for each week of its Retention, too: years of it are hundreds of tables.)
//
// A claim costs more than Plain's, for the server finds the partition and reads the CHECKs anew for each statement: measured as
// [Hash] was, the rate was 0.64 to 0.79 of Plain's. What it spares is deleting, and VACUUM after it.
const Weekly Layout = Layout(schema.Weekly)
