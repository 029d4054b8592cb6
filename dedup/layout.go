package dedup

import "github.com/pgonce/pgonce/internal/schema"

// Layout is how a table is laid out on disk: [Plain], or what [Hash] returns. The zero value is Plain. A table keeps the
// layout that it was made with; folder layouts beside this package holds the SQL to change it.
type Layout int

// Plain is one ordinary table with one index.
const Plain Layout = 0

// Hash returns the layout of a table in n partitions, from 2 to 1,024, by hash of the key. The primary key is the same as
// [Plain]'s, (key, operation, source), and holds over all partitions: equal keys have the same hash, so that they meet in
// one partition. Everything works as with Plain, with the same statements and round trips. Any other n gives a Layout that
// [Table.Validate] refuses.
func Hash(n int) Layout { return Layout(schema.Hash(n)) }
