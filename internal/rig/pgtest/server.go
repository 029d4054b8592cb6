package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// server is what this process's tests run on.
type server struct {
	admin   *pgxpool.Pool // on a database that is not ours
	version int
	create  string // options of CREATE DATABASE

	stop func() error           // lets go of the server
	keep func() (string, error) // makes it stay, and returns how to stop it; nil: it cannot
	kept bool                   // it stays anyway

	keepOnce sync.Once

	freeMu sync.Mutex
	free   []string // databases that are empty again
}

// shared is the server of this process. It is package state because every test function is an entry point of its
// own: there is nobody who could hand it from one to the next.
var shared lazy

func current() (*server, error) { return (&shared).get() }

// lazy gets a server when it is asked for the first time.
type lazy struct {
	once sync.Once
	s    *server
	err  error
}

func (l *lazy) get() (*server, error) {
	l.once.Do(func() { l.s, l.err = acquire(context.Background()) })
	return l.s, l.err
}

// got returns the server where there is one already; afterwards none is made any more.
func (l *lazy) got() *server {
	l.once.Do(func() { l.err = errOver })
	return l.s
}

var errOver = errors.New("pgtest: the tests of this package are over")

// newServer connects to a server by a connection string for a database that is there already.
func newServer(ctx context.Context, dsn string) (*server, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 4
	admin, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &server{admin: admin, stop: func() error { return nil }}
	var fsync bool
	err = admin.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int4, current_setting('fsync')::bool`).Scan(&s.version, &fsync)
	if err != nil {
		admin.Close()
		return nil, err
	}
	// Copying files takes a fifth of the time of the default, which writes every page to the log, but ends in a
	// checkpoint: that is cheap only where nothing waits for the disk. Before version 15 there is no choice.
	if s.version >= 150000 && !fsync {
		s.create = " STRATEGY file_copy"
	}
	return s, nil
}

// close lets go of the server.
func (s *server) close() error {
	if s.kept {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		for name := s.takeFree(); name != ""; name = s.takeFree() {
			if err := s.dropDatabase(ctx, name); err != nil {
				s.admin.Close()
				return errors.Join(err, s.stop())
			}
		}
	}
	s.admin.Close()
	return s.stop()
}

// createDatabase makes an empty database. It is a copy of template0, to which nobody can be connected: a copy of a
// template with a session in it fails.
func (s *server) createDatabase(ctx context.Context, name string) error {
	_, err := s.admin.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+` TEMPLATE template0`+s.create)
	return err
}

func (s *server) dropDatabase(ctx context.Context, name string) error {
	_, err := s.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`)
	return err
}

// newName returns a name for a test's database.
func newName() string { return "pgonce_test_" + strings.ToLower(rand.Text()) }

// database gets an empty database for a test.
func (s *server) database(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	name := s.recycled(ctx)
	if name == "" {
		name = newName()
		if err := s.createDatabase(ctx, name); err != nil {
			t.Fatalf("pgtest: create a database: %v", err)
		}
	}
	t.Cleanup(func() { s.endDatabase(t, name) })
	return name
}

// endDatabase drops a test's database, or keeps it when the test failed and that makes sense.
func (s *server) endDatabase(t testing.TB, name string) {
	t.Helper()
	if t.Failed() && s.stays(t) {
		t.Logf("pgtest: the database stays: %s", s.shown(name))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if !t.Failed() && s.recycle(ctx, name) == nil {
		return
	}
	if err := s.dropDatabase(ctx, name); err != nil {
		t.Errorf("pgtest: drop the test's database: %v", err)
	}
}

// stays says whether the server will be there after the run, and makes it so when that was asked for.
func (s *server) stays(t testing.TB) bool {
	t.Helper()
	if s.kept {
		return true
	}
	if os.Getenv("PGONCE_TEST_KEEP") == "" || s.keep == nil {
		return false
	}
	s.keepOnce.Do(func() {
		stop, err := s.keep()
		if err != nil {
			t.Errorf("pgtest: keep the server: %v", err)
			return
		}
		t.Logf("pgtest: the server stays; to stop it: %s", stop)
		s.stop = func() error { return nil }
	})
	return true
}

// dsn returns the connection string of another database of this server.
func (s *server) dsn(database string) string {
	given := s.admin.Config().ConnString()
	if !strings.HasPrefix(given, "postgres://") && !strings.HasPrefix(given, "postgresql://") {
		return given + " dbname=" + database // the last one counts
	}
	u, err := url.Parse(given)
	if err != nil {
		panic(fmt.Sprintf("pgtest: a connection string that was parsed before: %v", err))
	}
	u.Path = "/" + database
	q := u.Query()
	q.Del("dbname")
	q.Del("database")
	u.RawQuery = q.Encode()
	return u.String()
}

// shown returns the connection string for a log. The password of a server that is not ours is left out.
func (s *server) shown(database string) string {
	if !s.kept {
		return s.dsn(database)
	}
	c := s.admin.Config().ConnConfig
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(c.User, "xxxxx"),
		Host: net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), Path: "/" + database,
	}
	return u.String()
}

// waitForServer connects to a server that is still starting.
func waitForServer(ctx context.Context, dsn string) (*server, error) {
	for {
		s, err := newServer(ctx, dsn)
		if err == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; the last try: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
