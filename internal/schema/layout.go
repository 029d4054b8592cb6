package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/internal/pg"
)

// Layout is how a table is laid out, as in package dedup: Plain, Weekly, or hash and the number of partitions.
type Layout int

// The layouts.
const (
	Plain  Layout = 0
	Weekly Layout = 1

	hash Layout = 1 << 16

	minPartitions, maxPartitions = 2, 1024
)

// Hash returns the layout of n partitions by hash. What is no number of partitions gives a layout that is not
// [Layout.Known].
func Hash(n int) Layout {
	if n < minPartitions || n > maxPartitions {
		return hash
	}
	return hash + Layout(n)
}

// Partitions returns how many partitions by hash the layout has; 0 where it is another one.
func (l Layout) Partitions() int {
	if n := int(l - hash); n >= minPartitions && n <= maxPartitions {
		return n
	}
	return 0
}

// Known reports whether l is a layout.
func (l Layout) Known() bool { return l == Plain || l == Weekly || l.Partitions() > 0 }

func (l Layout) String() string {
	switch n := l.Partitions(); {
	case n > 0:
		return fmt.Sprintf("hash %d", n)
	case l == Plain:
		return "plain"
	case l == Weekly:
		return "weekly"
	}
	return "unknown"
}

// Table is what is made and verified.
type Table struct {
	Name      pg.Name
	Layout    Layout
	Retention time.Duration
	Spread    Spread
}

// leaf returns the name of a partition: the table's and the suffix. Where that is longer than PostgreSQL keeps, the
// table's name is cut, and told apart by a hash: two tables must not meet in one partition's name.
func leaf(table pg.Name, suffix string) pg.Name {
	name := table.Table
	if len(name)+len(suffix) > pg.MaxIdentifier {
		sum := sha256.Sum256([]byte(name))
		suffix = "_" + hex.EncodeToString(sum[:4]) + suffix
		name = name[:pg.MaxIdentifier-len(suffix)]
		for !utf8.ValidString(name) {
			name = name[:len(name)-1]
		}
	}
	return pg.Name{Schema: table.Schema, Table: name + suffix}
}

// hashLeaf returns the statement that makes one partition by hash.
func hashLeaf(table pg.Name, modulus, remainder int64) string {
	return strings.NewReplacer(
		"/*leaf*/processed_events_h0", leaf(table, fmt.Sprintf("_h%d", remainder)).Quoted(),
		pg.Marker, table.Quoted(),
		"/*modulus*/8", fmt.Sprint(modulus),
		"/*remainder*/0", fmt.Sprint(remainder),
	).Replace(hashLeaf0001)
}
