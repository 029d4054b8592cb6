package conformance

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// shelf keeps the databases of a door, with their pools, between tests. Each test has one to itself, with new tables; but
// the sessions are those of an earlier test. Making a database and three sessions for each of a hundred tests in each of
// a dozen modes is what the suite would otherwise spend its time on. It is also what a long-lived pool meets: a statement
// that was cached on tables which have been made anew since.
type shelf struct {
	t    *testing.T // lasts as long as all of the suite
	open func(*testing.T) DB
	ddl  string // of the dedup table

	mu   sync.Mutex
	free []DB
}

// take returns a database with new, empty tables.
func (s *shelf) take(ctx context.Context, t *testing.T) DB {
	t.Helper()
	db := s.pick()
	if db == nil {
		db = s.open(s.t)
	}
	for _, sql := range []string{"DROP SCHEMA public CASCADE", "CREATE SCHEMA public", s.ddl, Schema} {
		for _, stmt := range strings.SplitAfter(sql, ";\n") {
			require.NoError(t, db.Exec(ctx, stmt))
		}
	}
	return db
}

func (s *shelf) pick() DB {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return nil
	}
	db := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return db
}

// put gives a database back that a test has left idle.
func (s *shelf) put(db DB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, db)
}
