package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Quiet closes the pool's idle connections, and waits until no other session of the database is left: a session hands
// in its counts for the statistics when it ends, at the latest. Without it, what ran before a measurement is counted
// in it. Nothing may be running on the database.
func Quiet(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		pool.Reset()
		var others int
		err := pool.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			 WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&others)
		switch {
		case err != nil:
			t.Fatalf("pgtest: %v", err)
		case others == 0:
			return
		case time.Now().After(deadline):
			t.Fatalf("pgtest: %d other sessions do not end", others)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
