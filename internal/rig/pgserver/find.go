//go:build linux || darwin || freebsd

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// BinEnv names the environment variable that says where the server binaries are. When it is set, nothing else is
// looked at.
const BinEnv = "PGONCE_PG_BIN"

// ErrNotFound says that the machine has no PostgreSQL server binaries.
var ErrNotFound = errors.New("pgserver: no PostgreSQL server found: " +
	"initdb and postgres are neither in " + BinEnv + " nor on PATH, beside pg_config, or where packages put them")

// Find returns the folder with the machine's PostgreSQL server binaries: the one in PGONCE_PG_BIN, on PATH, of
// pg_config, else the newest of those where Debian's, Red Hat's and Homebrew's packages put them. A folder counts when
// both initdb and postgres are in it. The error is ErrNotFound, or says what is wrong with PGONCE_PG_BIN.
func Find(ctx context.Context) (string, error) {
	if dir := os.Getenv(BinEnv); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("pgserver: no initdb and postgres in %s=%s", BinEnv, dir)
		}
		return dir, nil
	}
	for _, dir := range candidates(ctx, "/") {
		if hasServer(dir) {
			return dir, nil
		}
	}
	return "", ErrNotFound
}

// candidates lists the folders to look in, best first. Packages' places are looked for under root.
func candidates(ctx context.Context, root string) []string {
	var dirs []string
	for _, name := range []string{"postgres", "initdb"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		// Debian and others put links to some programs on PATH; the rest is where the links point to.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"usr/lib/postgresql/*/bin",          // Debian, Ubuntu, Alpine's versioned packages have .../postgresql*/bin
		"usr/libexec/postgresql*",           // Alpine
		"usr/pgsql-*/bin",                   // PostgreSQL's own RPM packages
		"opt/homebrew/opt/postgresql@*/bin", // Homebrew on Apple silicon
		"usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
		"home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"Applications/Postgres.app/Contents/Versions/*/bin",
		"usr/local/pgsql/bin", // built from source
	} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(majorIn(b), majorIn(a)) })
		dirs = append(dirs, found...)
	}
	return dirs
}

var number = regexp.MustCompile(`[0-9]+`)

// majorIn returns the last number in a path: 17 sorts before 9.6 only as a number.
func majorIn(path string) int {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || fi.IsDir() || fi.Mode().Perm()&0o111 == 0 {
			return false
		}
	}
	return true
}

// binVersion asks the binary for its version: "postgres (PostgreSQL) 15.14 (Debian 15.14-1)".
func binVersion(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("pgserver: ask postgres for its version: %w", err)
	}
	fields := strings.Fields(string(out))
	if len(fields) < 3 {
		return "", fmt.Errorf("pgserver: cannot read the version %q", out)
	}
	return fields[2], nil
}
