package idemtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// inUse is what CREATE DATABASE and DROP DATABASE say of a database that somebody is connected to.
const inUse = "55006"

// server makes copies of a database, and removes them.
type server struct {
	cfg  *pgxpool.Config // of the user's database
	copy string          // options of CREATE DATABASE

	mu     sync.Mutex // conn is used by one goroutine at a time
	conn   *pgx.Conn  // to a database that is none of the copies
	prefix string     // of the names of the copies
	made   int
	names  []string
}

// newServer connects to the server of dsn, but not to the database that dsn names, which is to be copied for a test.
func newServer(ctx context.Context, dsn, test string) (*server, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read Kit.DSN: %w", err)
	}
	var errs []error
	for _, maintenance := range []string{"postgres", "template1"} {
		admin := cfg.ConnConfig.Copy()
		if maintenance == admin.Database {
			continue
		}
		admin.Database = maintenance
		conn, err := pgx.ConnectConfig(ctx, admin)
		if err == nil {
			s := &server{cfg: cfg, conn: conn, prefix: copyPrefix(test)}
			return s, errors.Join(s.begin(ctx), s.chooseCopy(ctx))
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("connect to the database postgres or template1, from where others are copied: %w",
		errors.Join(errs...))
}

// chooseCopy has files copied where nothing waits for the disk: that takes a third of the time of the default, which
// writes every page to the log, but ends in a checkpoint. Before version 15 there is no choice.
func (s *server) chooseCopy(ctx context.Context) error {
	var fast bool
	err := s.conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int >= 150000 AND NOT current_setting('fsync')::bool`).Scan(&fast)
	if fast {
		s.copy = " STRATEGY file_copy"
	}
	return err
}

// clone copies a database.
func (s *server) clone(ctx context.Context, from string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.nextName()
	deadline := time.Now().Add(2 * time.Second) // the server itself waits for 5, before it says so
	for {
		_, err := s.conn.Exec(ctx, `CREATE DATABASE `+pg.Quote(name)+` TEMPLATE `+pg.Quote(from)+s.copy)
		switch {
		case err == nil:
			s.names = append(s.names, name)
			return name, nil
		case !pgerr.Is(err, inUse) || time.Now().After(deadline) || ctx.Err() != nil:
			return "", fmt.Errorf("copy the database %s (nobody may be connected to it, and the role needs CREATEDB): %w", from,
				err)
		}
		time.Sleep(20 * time.Millisecond) // a session that is just closing
	}
}

// drop removes a copy, with whoever is still connected to it.
func (s *server) drop(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Exec(ctx, `DROP DATABASE IF EXISTS `+pg.Quote(name)+` WITH (FORCE)`)
	if err == nil {
		s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == name })
	}
	return err
}

// close removes all copies but the one to keep, and the connection.
func (s *server) close(keep string) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	var errs []error
	for _, name := range slices.Clone(s.names) {
		if name != keep {
			errs = append(errs, s.drop(ctx, name))
		}
	}
	return errors.Join(append(errs, s.conn.Close(ctx))...)
}

// pool returns a pool on one of the copies. Nothing cuts its connections.
func (s *server) pool(ctx context.Context, database string, most int32) (*pgxpool.Pool, error) {
	cfg := s.cfg.Copy()
	cfg.ConnConfig.Database = database
	cfg.MinConns, cfg.MinIdleConns, cfg.MaxConns = 0, 0, most
	return pgxpool.NewWithConfig(ctx, cfg)
}
