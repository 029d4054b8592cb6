//go:build linux || darwin || freebsd

// Package pgserver starts a private PostgreSQL server: for the tests of this module, and for an example that should run
// on a machine where nothing was set up.
//
// The server listens on a free port of 127.0.0.1 and nowhere else, keeps its files in a temporary folder, and is gone
// when its owner is: [Server.Stop] stops it and removes the folder, a small shell process does the same when the
// owner dies in any other way, and [Start] removes what even that could not.
//
// The package needs no test library and no container engine. It runs on Linux, macOS and FreeBSD; elsewhere Start
// returns an error.
package pgserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Config says what server [Start] makes. The zero value is a server with PostgreSQL's own defaults, from the binaries
// that [Find] finds, else from those that [Download] gets.
type Config struct {
	// BinDir is the folder that holds initdb and postgres. Empty: see above.
	BinDir string

	// Settings are lines of postgresql.conf, name to value, unquoted: {"log_statement": "all"}. They go after the
	// settings of this package (max_connections 200, and where to listen), so they win.
	Settings map[string]string

	// TempDir is where the server's folder is made. Empty: os.TempDir. When the caller is root and the account
	// that the server runs as cannot enter it, /tmp is used instead.
	TempDir string

	linger time.Duration // how long a shared server waits for the next owner; 0: 2 s
}

// FastAndUnsafe returns [Config.Settings] for a server whose data nobody will miss: nothing waits for the disk. A crash
// of the machine loses the data; a crash of the server does not lose what was committed.
func FastAndUnsafe() map[string]string {
	// Not synchronous_commit = off as well: COMMIT would no longer wait for the operating system to have it, and
	// Kill would lose what was committed just before. Without fsync it gains little.
	// dedup.Verify would report the two, but for the third.
	return map[string]string{"fsync": "off", "full_page_writes": "off", "pgonce.throwaway": "on"}
}

// Server is a running private PostgreSQL. Its methods may be called by one goroutine at a time; DSN, Version and
// LogFile by any number.
type Server struct {
	bin      string
	folder   *folder
	port     int
	password string
	version  string

	proc   *process // nil: the server does not run, or another process started it
	door   *os.File // what keeps a shared server running when another process started it
	shared bool
}

const (
	startTimeout = 2 * time.Minute
	userName     = "postgres"
)

// Start makes a database cluster in a folder of its own and starts a server on it, within two minutes where nothing
// has to be downloaded. It first removes what owners that were killed left behind. The caller must call
// [Server.Stop]; see there what happens otherwise.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	bin, err := cfg.binDir(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return start(ctx, cfg, bin, "")
}

// start makes a server; a key makes it one that [Join] finds.
func start(ctx context.Context, cfg Config, bin, key string) (*Server, error) {
	version, err := binVersion(ctx, bin)
	if err != nil {
		return nil, err
	}
	as, err := account()
	if err != nil {
		return nil, err
	}
	if !as.reaches(bin) {
		return nil, fmt.Errorf("pgserver: the account %s cannot reach the server binaries in %s", as, bin)
	}
	dir, err := tempDir(cfg.TempDir, as)
	if err != nil {
		return nil, err
	}
	sweep(dir)
	s := &Server{bin: bin, password: rand.Text(), version: version, shared: key != ""}
	if s.folder, err = newFolder(dir, as, s.shared); err != nil {
		return nil, err
	}
	s.folder.linger = cmp.Or(cfg.linger, 2*time.Second)
	if err := s.create(ctx, cfg.Settings); err != nil {
		return nil, errors.Join(err, s.folder.remove())
	}
	if err := s.runOnFreePort(ctx, freePort); err != nil {
		return nil, errors.Join(err, s.folder.remove())
	}
	if s.shared {
		if err := s.publish(key); err != nil {
			return nil, errors.Join(err, s.destroy())
		}
	}
	return s, nil
}

// binDir returns where the binaries are, and gets them when the machine has none.
func (cfg Config) binDir(ctx context.Context) (string, error) {
	if cfg.BinDir != "" {
		return cfg.BinDir, nil
	}
	bin, err := Find(ctx)
	if err == nil || !errors.Is(err, ErrNotFound) {
		return bin, err
	}
	bin, downloadErr := Download(ctx, Source{})
	if downloadErr != nil {
		return "", fmt.Errorf("%w\n%w\n%s", err, downloadErr, Advice)
	}
	return bin, nil
}

// DSN returns the connection string of a database of this server: "postgres" is always there. The user is a superuser.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(userName, s.password),
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:   "/" + database,
		// lib/pq asks for TLS unless told otherwise, and this server has none.
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Version returns the server's version as PostgreSQL writes it: "15.14".
func (s *Server) Version() string { return s.version }

// LogFile returns the path of the server's log. It is gone after Stop.
func (s *Server) LogFile() string { return filepath.Join(s.folder.path, "log") }
