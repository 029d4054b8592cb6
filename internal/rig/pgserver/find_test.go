//go:build linux || darwin || freebsd

package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeServer makes a folder that counts as one with a server.
func fakeServer(t *testing.T, bin string) string {
	t.Helper()
	script(t, bin, "postgres", "")
	script(t, bin, "initdb", "")
	return bin
}

func TestFindInVariable(t *testing.T) {
	dir := t.TempDir()
	bin := fakeServer(t, filepath.Join(dir, "bin"))
	t.Setenv(BinEnv, bin)
	got, err := Find(t.Context())
	require.NoError(t, err)
	require.Equal(t, bin, got)

	// Nothing else will do when it is set.
	t.Setenv(BinEnv, dir)
	_, err = Find(t.Context())
	require.ErrorContains(t, err, BinEnv)
	require.NotErrorIs(t, err, ErrNotFound)
}

func TestCandidates(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	path := filepath.Join(root, "path")
	require.NoError(t, os.Mkdir(path, 0o755))
	t.Setenv("PATH", path)
	first := func() string {
		for _, dir := range candidates(t.Context(), root) {
			if hasServer(dir) {
				return dir
			}
		}
		return ""
	}
	require.Empty(t, first())

	// From the last place to the first: each is preferred to those before.
	for _, bin := range []string{
		"usr/local/pgsql/bin",
		"Applications/Postgres.app/Contents/Versions/17/bin",
		"home/linuxbrew/.linuxbrew/opt/postgresql@17/bin",
		"usr/local/opt/postgresql@14/bin",
		"opt/homebrew/opt/postgresql@14/bin",
		"opt/homebrew/opt/postgresql@17/bin",
		"usr/pgsql-15/bin",
		"usr/pgsql-18/bin",
		"usr/libexec/postgresql16",
		"usr/lib/postgresql/9.6/bin",
		"usr/lib/postgresql/15/bin",
		"usr/lib/postgresql/17/bin",
	} {
		bin = fakeServer(t, filepath.Join(root, bin))
		require.Equal(t, bin, first())
	}
	// One program of the two is not enough, nor one that cannot be run.
	script(t, filepath.Join(root, "usr/lib/postgresql/18/bin"), "postgres", "")
	require.NoError(t, os.WriteFile(filepath.Join(root, "usr/lib/postgresql/18/bin/initdb"), nil, 0o644))
	require.Equal(t, filepath.Join(root, "usr/lib/postgresql/17/bin"), first())

	configured := fakeServer(t, filepath.Join(root, "configured"))
	script(t, path, "pg_config", `[ "$1" = --bindir ] && echo "`+configured+`"`)
	require.Equal(t, configured, first())

	// A link to one program on PATH leads to both.
	linked := fakeServer(t, filepath.Join(root, "linked"))
	require.NoError(t, os.Symlink(filepath.Join(linked, "initdb"), filepath.Join(path, "initdb")))
	require.Equal(t, linked, first())
	require.NoError(t, os.Remove(filepath.Join(path, "initdb")))
	require.NoError(t, os.Symlink(filepath.Join(linked, "postgres"), filepath.Join(path, "postgres")))
	require.Equal(t, linked, first())
}

func TestReaches(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	open := filepath.Join(dir, "open")
	require.NoError(t, os.Mkdir(open, 0o755))
	as := &runAs{name: "somebody"}
	require.True(t, as.reaches(open))
	require.True(t, (*runAs)(nil).reaches(open))
	require.NoError(t, os.Chmod(dir, 0o750))
	require.False(t, as.reaches(open), "a closed folder on the way")

	got, err := tempDir(open, as)
	require.NoError(t, err)
	want, err := filepath.EvalSymlinks("/tmp")
	require.NoError(t, err)
	require.Equal(t, want, got)
}
