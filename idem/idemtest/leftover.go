package idemtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
)

// A copy's name tells whose it is: the test, when the call of the kit began, the call, and which of its copies it is.
// For as long as the call lasts, its session holds an advisory lock on what is before the last part.
var copyName = regexp.MustCompile(`^(idemtest_([0-9a-f]{8})_([0-9]{8}t[0-9]{6})_[a-z2-7]{8})_[0-9]+$`)

const (
	copyTime = "20060102t150405"
	keptFor  = 24 * time.Hour
)

// copyPrefix is the first part of the names of one call's copies.
func copyPrefix(test string) string {
	return fmt.Sprintf("idemtest_%s_%s_%s", testHash(test), time.Now().UTC().Format(copyTime),
		strings.ToLower(rand.Text()[:8]))
}

// testHash stands for a test, of this package.
func testHash(test string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(testPackage() + " " + test))
	return fmt.Sprintf("%08x", h.Sum32())
}

// lockKey is the advisory lock of a call's copies.
func lockKey(prefix string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(prefix))
	return int64(h.Sum64()) //nolint:gosec // any 64 bits
}

// begin says that the copies with this server's prefix are in use. It is called before there is one.
func (s *server) begin(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, `SELECT pg_advisory_lock($1::bigint)`, lockKey(s.prefix))
	return err
}

// Advisory locks belong to a database, and another call's session can be in another one. The view shows them all.
const (
	listCopies = `
SELECT d.datname::text FROM pg_database d
WHERE d.datname LIKE 'idemtest\_%' AND pg_has_role(d.datdba, 'USAGE')
	AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datid = d.oid)
ORDER BY 1`
	listLocks = `SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1`
)

// sweep drops what earlier calls left: those of the same test, and what is a day old. A call that goes on is left
// alone. The lock of a copy is older than the copy, and never taken again: who sees the copy first and then no lock
// knows that the call is over. Nothing is dropped by force.
func (s *server) sweep(ctx context.Context, test string) (dropped []string, err error) {
	rows, err := s.conn.Query(ctx, listCopies)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return nil, err
	}
	if rows, err = s.conn.Query(ctx, listLocks); err != nil {
		return nil, err
	}
	held := map[int64]bool{}
	var high, low int64
	if _, err := pgx.ForEachRow(rows, []any{&high, &low}, func() error {
		held[high<<32|low] = true
		return nil
	}); err != nil {
		return nil, err
	}
	for _, name := range names {
		prefix, ok := leftover(name, test, time.Now())
		if !ok || held[lockKey(prefix)] {
			continue
		}
		if _, err := s.conn.Exec(ctx, `DROP DATABASE IF EXISTS `+pg.Quote(name)); err != nil {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
	return dropped, nil
}

// leftover says whether a database, by its name, is one that a call of this test may remove, and returns its prefix.
func leftover(name, test string, now time.Time) (prefix string, ok bool) {
	m := copyName.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	begun, err := time.Parse(copyTime, m[3])
	return m[1], err == nil && (m[2] == testHash(test) || now.Sub(begun) > keptFor)
}

// nextName names the next copy.
func (s *server) nextName() string {
	s.made++
	return s.prefix + "_" + strconv.Itoa(s.made)
}
