package conformance

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// shelf keeps the databases of a door, with their pools, between tests. Each test has one to itself, with empty
// tables; but the sessions are those of an earlier test. Making a database, three sessions and five tables for each
// of a hundred tests in each of a dozen modes is what the suite would otherwise spend its time on. After a test that
// changed the schema the tables are made anew, which is also what a long-lived pool meets: a statement that was
// cached on tables that are gone.
type shelf struct {
	t      *testing.T // lasts as long as all of the suite
	open   func(*testing.T) DB
	ddl    string // of the dedup table
	spread string // of the tables, over a cluster

	mu   sync.Mutex
	free []shelved
}

// shelved is a database, and the print of its schema when its tables were made; 0: they have not been.
type shelved struct {
	DB
	made int64
}

// schemaPrint is a number that another schema does not have: an object that is changed or made has a row of another
// transaction.
const schemaPrint = `
SELECT bit_xor(hashtextextended(what, 0))
  FROM (SELECT concat('class ', oid, ' ', xmin, ' ', relname) AS what FROM pg_class WHERE oid >= 16384
        UNION ALL SELECT concat('column ', attrelid, ' ', attnum, ' ', xmin) FROM pg_attribute WHERE attrelid >= 16384
        UNION ALL SELECT concat('default ', oid, ' ', xmin) FROM pg_attrdef
        UNION ALL SELECT concat('constraint ', oid, ' ', xmin) FROM pg_constraint
        UNION ALL SELECT concat('trigger ', oid, ' ', xmin) FROM pg_trigger
        UNION ALL SELECT concat('policy ', oid, ' ', xmin) FROM pg_policy
        UNION ALL SELECT concat('function ', oid, ' ', xmin) FROM pg_proc WHERE oid >= 16384
        UNION ALL SELECT concat('schema ', oid, ' ', xmin) FROM pg_namespace) AS rows`

const empty = `
DO $$ BEGIN
  DELETE FROM processed_events;
  DELETE FROM effects;
  DELETE FROM business;
  DELETE FROM child;
  DELETE FROM parent;
END $$`

const dropTables = `
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition LOOP
    EXECUTE 'DROP TABLE ' || name || ' CASCADE';
  END LOOP;
END $$`

// take returns a database with empty tables.
func (s *shelf) take(ctx context.Context, t *testing.T) shelved {
	t.Helper()
	db, found := s.pick()
	if !found {
		db = shelved{DB: s.open(s.t)}
	}
	if db.made != 0 {
		now, err := db.Int(ctx, schemaPrint)
		require.NoError(t, err)
		if now == db.made {
			require.NoError(t, db.Exec(ctx, empty))
			return db
		}
	}
	emptied := "DROP SCHEMA public CASCADE;\nCREATE SCHEMA public"
	if s.spread != "" {
		emptied = dropTables // an extension may depend on the schema
	}
	for _, sql := range []string{emptied, s.ddl, Schema, s.spread} {
		for _, stmt := range statements(sql) {
			if strings.TrimSpace(stmt) != "" {
				require.NoError(t, db.Exec(ctx, stmt), stmt)
			}
		}
	}
	made, err := db.Int(ctx, schemaPrint)
	require.NoError(t, err)
	db.made = made
	return db
}

// statements takes a text apart. One that holds a body is one statement.
func statements(sql string) []string {
	if strings.Contains(sql, "$$") {
		return []string{sql}
	}
	return strings.SplitAfter(sql, ";\n")
}

func (s *shelf) pick() (db shelved, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return shelved{}, false
	}
	db = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return db, true
}

// put gives a database back that a test has left idle.
func (s *shelf) put(db shelved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, db)
}
