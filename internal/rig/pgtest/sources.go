package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// urlEnv names the environment variable with the connection string of a server to test on.
const urlEnv = "PGONCE_TEST_DATABASE_URL"

// absent is the error of a source that is not there, as opposed to one that does not work.
type absent string

func (a absent) Error() string { return string(a) }

// source is a way to get a server.
type source struct {
	name string
	get  func(context.Context) (*server, error)
}

func sources() []source {
	return []source{
		{"url", fromURL},
		{"local", fromMachine},
		{"docker", fromDocker},
		{"download", fromDownload},
	}
}

// acquire gets a server from the first source that has one.
func acquire(ctx context.Context) (*server, error) {
	var only []string
	if list := os.Getenv("PGONCE_TEST_SOURCES"); list != "" {
		only = strings.Split(list, ",")
	}
	var tried strings.Builder
	for _, src := range sources() {
		if only != nil && !slices.Contains(only, src.name) {
			fmt.Fprintf(&tried, "  %s: not in PGONCE_TEST_SOURCES\n", src.name)
			continue
		}
		s, err := src.get(ctx)
		if err == nil {
			return s, nil
		}
		fmt.Fprintf(&tried, "  %s: %v\n", src.name, err)
		// What somebody asked for by name must work: tests on another server would not be the ones they wanted.
		if _, ok := errors.AsType[absent](err); !ok && src.name == "url" {
			break
		}
	}
	return nil, fmt.Errorf(`pgtest: no PostgreSQL to test on.
What was tried:
%sOne of these helps:
%s
  systemctl start docker               or any other Docker engine
  export %s=postgres://user:password@host/database    its user must be allowed to create databases`,
		&tried, pgserver.Advice, urlEnv)
}

func fromURL(ctx context.Context) (*server, error) {
	dsn := os.Getenv(urlEnv)
	if dsn == "" {
		return nil, absent(urlEnv + " is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	s, err := newServer(ctx, dsn)
	if err != nil {
		return nil, err
	}
	s.kept = true
	return s, nil
}

func fromMachine(ctx context.Context) (*server, error) {
	bin, err := pgserver.Find(ctx)
	if err != nil {
		return nil, err
	}
	return private(ctx, bin)
}

func fromDownload(ctx context.Context) (*server, error) {
	bin, err := pgserver.Download(ctx, pgserver.Source{})
	if err != nil {
		return nil, err
	}
	return private(ctx, bin)
}

// private starts a private server, or joins the one that another package of this run has started.
func private(ctx context.Context, bin string) (*server, error) {
	pg, err := pgserver.Join(ctx, pgserver.Config{BinDir: bin, Settings: settings()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	s, err := newServer(ctx, pg.DSN("postgres"))
	if err != nil {
		return nil, errors.Join(err, pg.Stop())
	}
	s.stop, s.keep = pg.Stop, pg.Keep
	return s, nil
}

// settings are those of a server that is ours.
func settings() map[string]string {
	return map[string]string{
		// Nothing waits for the disk. COMMIT still waits for the operating system, so that a crash of the server loses
		// nothing.
		"fsync":            "off",
		"full_page_writes": "off",
		"pgonce.throwaway": "on", // else dedup.Verify reports the two
		// The packages that are tested at once share the server.
		"max_connections": "500",
		// It would start a worker for each of the many databases, all the time, and write behind the backs of tests that
		// count.
		"autovacuum": "off",
	}
}
