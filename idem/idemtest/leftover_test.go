package idemtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

var keptName = regexp.MustCompile(`the database is kept: (idemtest_\w+)$`)

// databases lists the kit's databases on the server of dsn.
func databases(t *testing.T, dsn string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `SELECT datname::text FROM pg_database WHERE datname LIKE 'idemtest\_%'`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

// renamed makes a database older, as its name tells.
func renamed(t *testing.T, dsn, name string, age time.Duration) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	parts := strings.Split(name, "_")
	require.Len(t, parts, 5, name)
	parts[2] = time.Now().Add(-age).UTC().Format("20060102t150405")
	old := strings.Join(parts, "_")
	_, err = conn.Exec(t.Context(), `ALTER DATABASE `+name+` RENAME TO `+old)
	require.NoError(t, err)
	return old
}

// TestLeftoverOffender is killed with its copies, in a process of its own.
func TestLeftoverOffender(t *testing.T) {
	if os.Getenv(offenderEnv) != "leftover" {
		return
	}
	k := idemtest.Kit[payment]{DSN: os.Getenv("IDEMTEST_LEFTOVER_DSN"), Setup: setup, Deliveries: payments}
	k.Handler = func(db *idemtest.DB) func(context.Context, payment) error {
		return func(context.Context, payment) error {
			fmt.Println("killed in", db.Pool().Config().ConnConfig.Database)
			p, err := os.FindProcess(os.Getpid())
			require.NoError(t, err)
			_ = p.Kill()
			select {}
		}
	}
	k.DoubleSubmit(t)
}

// What a failure keeps stays until the same test runs again, or for a day. What a killed run left goes in the same way.
// What a living run works in stays.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	srv := pgtest.DSN(t)
	fails := func(test string) string {
		k := kit(t, onPool(noKey))
		r := &aliased{recorder{t: t}, test}
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.DoubleSubmit(r)
		}()
		<-done
		m := keptName.FindStringSubmatch(r.failed)
		require.NotNil(t, m, r.failed)
		return m[1]
	}
	first, other := fails("TestA"), fails("TestB")
	require.Subset(t, databases(t, srv), []string{first, other})
	again := fails("TestA")
	require.NotContains(t, databases(t, srv), first, "the same test has run again")
	require.Subset(t, databases(t, srv), []string{other, again})

	old := renamed(t, srv, other, 25*time.Hour)
	young := renamed(t, srv, again, 23*time.Hour)
	fails("TestC")
	require.NotContains(t, databases(t, srv), old, "any test removes what is a day old")
	require.Contains(t, databases(t, srv), young)

	cmd := exec.Command(os.Args[0], "-test.run=^TestLeftoverOffender$")
	cmd.Env = append(os.Environ(), offenderEnv+"=leftover", "IDEMTEST_LEFTOVER_DSN="+pgtest.DSN(t))
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	m := regexp.MustCompile(`(?m)^killed in (idemtest_\w+_)\d+$`).FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	left := func() bool {
		return slices.ContainsFunc(databases(t, srv), func(name string) bool { return strings.HasPrefix(name, string(m[1])) })
	}
	require.True(t, left())
	for try := 0; left() && try < 5; try++ { // until the server knows of its death
		fails("TestLeftoverOffender")
	}
	require.False(t, left())
}

// A call that goes on keeps its copies, though the same test begins anew meanwhile.
func TestLivingCopies(t *testing.T) {
	t.Parallel()
	reached, goOn := make(chan string, 1), make(chan struct{})
	var once sync.Once
	k := kit(t, onPool(func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			once.Do(func() {
				reached <- pool.Config().ConnConfig.Database
				<-goOn
			})
			return soundOn(pool)(ctx, p)
		}
	}))
	k.Timeout = time.Minute
	failed := make(chan string)
	go func() {
		r := &recorder{t: t}
		k.DoubleSubmit(r)
		failed <- r.failed
	}()
	name := <-reached
	second := kit(t, onPool(noKey))
	require.Contains(t, failure(t, func(tb idemtest.TB) { second.DoubleSubmit(tb) }), "ledger too many")
	parts := strings.Split(name, "_")
	parts[len(parts)-1] = "1" // the original, to which nobody is connected
	require.Subset(t, databases(t, k.DSN), []string{name, strings.Join(parts, "_")})
	close(goOn)
	require.Empty(t, <-failed)
}

// aliased has a name of its own.
type aliased struct {
	recorder
	name string
}

func (a *aliased) Name() string { return a.name }
