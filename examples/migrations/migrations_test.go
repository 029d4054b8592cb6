package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gomigrate "github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	tern "github.com/jackc/tern/v2/migrate"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var update = flag.Bool("update", false, "write the files of the tools anew")

// versions are the steps of Table.DDL, one for each version of the table.
func versions(t *testing.T) []string {
	t.Helper()
	head := regexp.MustCompile(`(?m)^-- Version \d+:`)
	ddl := dedup.Table{}.DDL()
	at := head.FindAllStringIndex(ddl, -1)
	require.NotEmpty(t, at)
	require.Zero(t, at[0][0], "something stands before the first version")
	var steps []string
	for i, loc := range at {
		end := len(ddl)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		steps = append(steps, strings.TrimSpace(ddl[loc[0]:end])+"\n")
	}
	return steps
}

// Each tool has a file for each version of the table, with the text of Table.DDL.
func TestFiles(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for i, step := range versions(t) {
		n, down := i+1, "-- An older version of the table keeps what a newer one added.\nSELECT;\n"
		if n == 1 {
			down = "-- What was remembered is gone: a message that comes again runs again.\nDROP TABLE processed_events;\n"
		}
		want[fmt.Sprintf("goose/%05d_pgonce_version_%d.sql", n, n)] = "-- +goose Up\n-- +goose StatementBegin\n" + step +
			"-- +goose StatementEnd\n\n-- +goose Down\n" + down
		want[fmt.Sprintf("tern/%03d_pgonce_version_%d.sql", n, n)] = step + "\n---- create above / drop below ----\n\n" + down
		want[fmt.Sprintf("golang-migrate/%06d_pgonce_version_%d.up.sql", n, n)] = step
		want[fmt.Sprintf("golang-migrate/%06d_pgonce_version_%d.down.sql", n, n)] = down
	}
	for name, text := range want {
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		}
		got, err := os.ReadFile(name)
		require.NoError(t, err, "go test ./examples/migrations -run TestFiles -update writes it")
		require.Equal(t, text, string(got), "%s; go test ./examples/migrations -run TestFiles -update writes it", name)
	}
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".sql" {
			found++
		}
		return err
	}))
	require.Equal(t, len(want), found, "files that no version needs")
}

// Every tool makes a table that Verify finds sound and Migrate has nothing to add to, and takes it away again.
func TestTools(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]struct {
		up, down func(context.Context, *pgxpool.Pool) error
	}{
		"goose":          {migrate, nil},
		"tern":           {ternTo(-1), ternTo(0)},
		"golang-migrate": {goMigrate((*gomigrate.Migrate).Up), goMigrate((*gomigrate.Migrate).Down)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, ctx := pgtest.Pool(t), t.Context()
			comment := func() (text string) {
				const sql = `SELECT obj_description('processed_events'::regclass, 'pg_class')`
				require.NoError(t, pool.QueryRow(ctx, sql).Scan(&text))
				return text
			}
			require.NoError(t, tool.up(ctx, pool))
			require.NoError(t, dedup.Verify(ctx, pool))
			made := comment()
			require.NoError(t, dedup.Migrate(ctx, pool))
			require.Equal(t, made, comment())
			require.NoError(t, tool.up(ctx, pool), "once more")
			if tool.down == nil {
				return
			}
			require.NoError(t, tool.down(ctx, pool))
			require.Error(t, dedup.Verify(ctx, pool))
			require.NoError(t, tool.up(ctx, pool), "and up again")
			require.NoError(t, dedup.Verify(ctx, pool))
		})
	}
}

// ternTo migrates to a version; -1 is the newest.
func ternTo(version int32) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		m, err := tern.NewMigrator(ctx, conn.Conn(), "schema_version")
		if err != nil {
			return err
		}
		if err := m.LoadMigrations(os.DirFS("tern")); err != nil {
			return err
		}
		if version < 0 {
			return m.Migrate(ctx)
		}
		return m.MigrateTo(ctx, version)
	}
}

func goMigrate(run func(*gomigrate.Migrate) error) func(context.Context, *pgxpool.Pool) error {
	return func(_ context.Context, pool *pgxpool.Pool) error {
		driver, err := migratepgx.WithInstance(stdlib.OpenDBFromPool(pool), &migratepgx.Config{})
		if err != nil {
			return err
		}
		m, err := gomigrate.NewWithDatabaseInstance("file://golang-migrate", "pgx5", driver)
		if err != nil {
			return err
		}
		if err := run(m); err != nil && err != gomigrate.ErrNoChange { //nolint:errorlint // it is returned as it is
			return err
		}
		sourceErr, err := m.Close()
		if err != nil {
			return err
		}
		return sourceErr
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), pgtest.DSN(t), &out))
	require.Equal(t, "executed\nduplicate\n", out.String())
}
