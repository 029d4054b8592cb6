package idemtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// DB gives a handler its connections to the round's database, which the kit watches and cuts. It is safe for concurrent
// use, and closed by the kit.
type DB struct {
	cfg  *pgxpool.Config
	wire *wire
	held int // connections that the handler took when it was made, and keeps (LISTEN)

	mu    sync.Mutex
	pool  *pgxpool.Pool
	sql   *sql.DB
	conns []net.Conn

	answeredEarly bool // see HTTP
}

// Pool returns the pool of a handler that uses pgx, the same at every call; Acquire a connection from it.
func (db *DB) Pool() *pgxpool.Pool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.pool == nil {
		pool, err := pgxpool.NewWithConfig(context.Background(), db.cfg)
		if err != nil {
			panic(fmt.Errorf("idemtest: make a pool: %w", err)) // the kit catches it
		}
		db.pool = pool
	}
	return db.pool
}

// SQL returns the *sql.DB of a handler that uses database/sql, or what stands on it (sqlx, GORM, sqlc), the same at
// every call. The driver is pgx.
func (db *DB) SQL() *sql.DB {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.sql == nil {
		db.sql = stdlib.OpenDB(*db.cfg.ConnConfig,
			stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
		db.sql.SetMaxOpenConns(int(db.cfg.MaxConns))
		db.sql.SetMaxIdleConns(int(db.cfg.MaxConns))
	}
	return db.sql
}

// open returns the connections of one handler, watched by w.
func (st *stage) open(w *wire, workers int, configure func(*pgxpool.Config)) *DB {
	cfg := st.srv.cfg.Copy()
	cfg.ConnConfig.Database = st.name
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	cfg.MaxConns = max(cfg.MaxConns, int32(2*workers)) //nolint:gosec // a few
	if configure != nil {
		configure(cfg)
	}
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would count as a statement
	w.script.Attach(&cfg.ConnConfig.Config)
	db := &DB{cfg: cfg, wire: w}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			db.mu.Lock()
			db.conns = append(db.conns, c)
			db.mu.Unlock()
		}
		return c, err
	}
	return db
}

// warm opens connections, of the kind that the handler has asked for. What cannot be opened the handler will notice.
func (db *DB) warm(ctx context.Context, n int) {
	db.mu.Lock()
	pool, sqlDB := db.pool, db.sql
	db.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for range n {
		if pool != nil {
			if c, err := pool.Acquire(ctx); err == nil {
				defer c.Release()
			}
		}
		if sqlDB != nil {
			if c, err := sqlDB.Conn(ctx); err == nil {
				defer c.Close()
			}
		}
	}
}

// errLeaked says that a handler has returned and still holds a connection.
var errLeaked = errors.New("a connection is still in use")

// inUse returns how many connections somebody holds, or is about to.
func (db *DB) inUse() (n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.pool != nil {
		s := db.pool.Stat()
		n += int(s.AcquiredConns() + s.ConstructingConns())
	}
	if db.sql != nil {
		n += db.sql.Stats().InUse
	}
	return n
}

// idle waits until no connection is in use but those that are held: drivers give back a broken one in the background.
func (db *DB) idle(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; db.inUse() > db.held; pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return errLeaked
		}
		time.Sleep(pause)
	}
	return nil
}

// close lets go of the connections, by force where somebody holds one: the kit then terminates the sessions by dropping
// the database.
func (db *DB) close() {
	db.mu.Lock()
	pool, sqlDB := db.pool, db.sql
	if db.held > 0 { // nothing else ends what reads from them
		for _, c := range db.conns {
			_ = c.Close()
		}
	}
	db.mu.Unlock()
	if sqlDB != nil {
		_ = sqlDB.Close()
	}
	if pool == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		pool.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
}

// early says whether a status of 2xx was written in an open transaction.
func (db *DB) early() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.answeredEarly
}
