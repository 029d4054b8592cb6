package idem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The program that each README begins with compiles and runs as it stands, and does what its comments say.
func TestFirstMinute(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```go\n(package main\n.*?)```")
	for _, name := range []string{"README.md", ".github/README.pt-BR.md"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		program := block.FindSubmatch(text)
		require.NotNil(t, program, "%s has no program", name)
		require.LessOrEqual(t, strings.Count(string(program[1]), "\n"), 35, "the lines of %s's program", name)
		file := filepath.Join(t.TempDir(), "main.go")
		require.NoError(t, os.WriteFile(file, program[1], 0o600))

		pool := pgtest.Pool(t)
		at := pool.Config().ConnConfig
		cmd := exec.CommandContext(t.Context(), "go", "run", "-buildvcs=false", file)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "PGHOST="+at.Host, "PGPORT="+strconv.Itoa(int(at.Port)), "PGUSER="+at.User,
			"PGPASSWORD="+at.Password, "PGDATABASE="+at.Database)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s:\n%s", name, out)
		require.Regexp(t, `(?s)^\S+ \S+ evt_1 executed\n\S+ \S+ evt_2 executed\n\S+ \S+ evt_1 duplicate\n$`, string(out),
			name)
		var rows int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM payments`).Scan(&rows))
		require.Equal(t, 2, rows, name)
	}
}
