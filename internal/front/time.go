package front

import (
	"strconv"
	"strings"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
)

// KeyFault is what is wrong with a key for the table that it is used on. The front doors give it a type of their own.
type KeyFault struct{ Role, Problem string }

func (f *KeyFault) Error() string { return "the " + f.Role + " " + f.Problem }

// Timed reports whether the facts hold a time.
func Timed(f Facts) bool { return f.timed }

// timeOn returns the time by which a table of layout Weekly knows the key: the one inside, or its own.
func timeOn(id string, f Facts) (int64, error) {
	ms, inside := MillisOf(id)
	switch {
	case !inside && !f.timed:
		return 0, &claim.Failure{Stage: claim.StageTable, Err: &KeyFault{
			"time", "is missing, by which the table is partitioned; use OccurredAt, or a UUIDv7 or a ULID as the last part of " +
				"the key",
		}}
	case !inside:
		return f.at, nil
	case f.timed && floorMillis(f.at) != ms:
		return 0, &claim.Failure{Stage: claim.StageTable, Err: &KeyFault{
			"time", "is another one than the UUIDv7 or ULID in the key holds; leave OccurredAt out, or use HashedKey",
		}}
	}
	return ms * 1000, nil
}

func floorMillis(micros int64) int64 {
	if micros < 0 {
		return (micros - 999) / 1000
	}
	return micros / 1000
}

// settleTime sets the time of a claim on a table of layout Weekly, and leaves the others alone.
func settleTime(layout dedup.Layout, c *claim.Claim, f Facts) (err error) {
	if layout == dedup.Weekly {
		c.Timed = true
		c.At, err = timeOn(c.Key, f)
	}
	return err
}

// MillisOf returns the time inside the last part of a key, in milliseconds since 1970, where that part is a UUIDv7 in
// its form of 36 characters or a ULID, in either case, of the years 2004 to 2109. The table's CHECK event_time_of_key
// says the same in SQL.
//
// Why not the UUID without dashes: one hash in hex of 64 looks like it. And the years: they tell a ULID from a number
// of 26 digits.
func MillisOf(id string) (ms int64, ok bool) {
	last := id[strings.LastIndexByte(id, '/')+1:]
	if len(last) < 2 || last[0] != '0' || last[1] < '1' || last[1] > '3' {
		return 0, false
	}
	switch len(last) {
	case 36:
		for i := range len(last) {
			c := last[i]
			switch i {
			case 8, 13, 18, 23:
				ok = c == '-'
			case 14:
				ok = c == '7'
			case 19:
				ok = strings.IndexByte("89abAB", c) >= 0
			default:
				ok = strings.IndexByte("0123456789abcdefABCDEF", c) >= 0
			}
			if !ok {
				return 0, false
			}
		}
		ms, err := strconv.ParseInt(last[:8]+last[9:13], 16, 64)
		return ms, err == nil
	case 26:
		for i := range len(last) {
			d := strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", lower(last[i]))
			if d < 0 {
				return 0, false
			}
			if i < 10 {
				ms = ms*32 + int64(d)
			}
		}
		return ms, true
	}
	return 0, false
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
