package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
)

const (
	schemaName  = "pgonce_bench"      // of all tables of this program
	dbosSchema  = "pgonce_bench_dbos" // of those that DBOS makes
	dropSchemas = "DROP SCHEMA IF EXISTS " + schemaName + " CASCADE; DROP SCHEMA IF EXISTS " + dbosSchema + " CASCADE"

	workers  = 8
	linkTrip = time.Millisecond
)

// bench is the database that is measured, over several ways to it.
type bench struct {
	cfg      config
	progress io.Writer
	one      *pgxpool.Pool // of one connection
	many     *pgxpool.Pool // of one for each worker
	far      *pgxpool.Pool // of one, over a link of 1 ms
	stopLink func()
}

func open(ctx context.Context, cfg config, progress io.Writer) (*bench, error) {
	b := &bench{cfg: cfg, progress: progress, stopLink: func() {}}
	err := b.open(ctx)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) open(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.cfg.dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, dropSchemas+"; CREATE SCHEMA "+schemaName)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	if b.one, err = b.pool(ctx, 1, nil); err != nil {
		return err
	}
	if b.many, err = b.pool(ctx, workers, nil); err != nil {
		return err
	}
	link, stop, err := startLink(b.one.Config().ConnConfig, linkTrip)
	if err != nil {
		return err
	}
	b.stopLink = stop
	if b.far, err = b.pool(ctx, 1, link); err != nil {
		return err
	}
	return b.makeTables(ctx)
}

// pool opens a pool of n connections. Its size is fixed: a connection that is opened meanwhile would be
// measured, too.
func (b *bench) pool(ctx context.Context, n int, change func(*pgx.ConnConfig)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(b.cfg.dsn)
	if err != nil {
		return nil, err
	}
	cfg.MinConns, cfg.MaxConns = int32(n), int32(n) //nolint:gosec // a few
	cfg.ConnConfig.RuntimeParams["search_path"] = schemaName
	if change != nil {
		change(cfg.ConnConfig)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (b *bench) makeTables(ctx context.Context) error {
	var tables []dedup.Table
	for _, r := range rivals() {
		if r.sql == "" {
			tables = append(tables, dedup.Table{Name: r.table})
		} else if _, err := b.one.Exec(ctx, r.sql); err != nil {
			return err
		}
	}
	if err := dedup.Migrate(ctx, b.one, append(tables, dedup.Table{Name: "bench_batch"})...); err != nil {
		return err
	}
	_, err := b.one.Exec(ctx, `
		CREATE TABLE bench_effects (id text NOT NULL, amount int NOT NULL);
		CREATE TABLE bench_status (id text PRIMARY KEY, status text NOT NULL, at timestamptz NOT NULL, rank int NOT NULL);
		CREATE TABLE bench_status_hand (LIKE bench_status INCLUDING ALL)`)
	return err
}

func (b *bench) close() error {
	for _, pool := range []*pgxpool.Pool{b.one, b.many, b.far} {
		if pool != nil {
			pool.Close()
		}
	}
	b.stopLink()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, b.cfg.dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, dropSchemas)
	return errors.Join(err, conn.Close(ctx))
}

// describe says where and with what this is measured.
func (b *bench) describe(ctx context.Context) (page, error) {
	p := page{date: time.Now().UTC()}
	p.about = append(p.about, machine())
	versions := []string{runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			for name, path := range map[string]string{
				"pgx": "github.com/jackc/pgx/v5", "River": "github.com/riverqueue/river",
				"DBOS": "github.com/dbos-inc/dbos-transact-golang",
			} {
				if m.Path == path {
					versions = append(versions, name+" "+m.Version)
				}
			}
		}
	}
	rows, err := b.one.Query(ctx, `
		SELECT name || ' ' || current_setting(name)
		  FROM unnest('{server_version,fsync,synchronous_commit,full_page_writes,wal_level,shared_buffers,
		                max_wal_size}'::text[]) WITH ORDINALITY AS s (name, n) ORDER BY n`)
	if err != nil {
		return p, err
	}
	settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return p, err
	}
	trip, err := medianTrip(ctx, b.one)
	if err != nil {
		return p, err
	}
	far, err := medianTrip(ctx, b.far)
	if err != nil {
		return p, err
	}
	p.about = append(p.about, strings.Join(versions, ", "), "PostgreSQL: "+strings.Join(settings, ", "),
		fmt.Sprintf("a round trip with `SELECT 1`, median: %v, and %v over the link", rounded(trip), rounded(far)))
	return p, nil
}

func machine() string {
	what := fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	field := func(file, name string) string {
		text, _ := os.ReadFile(file)
		for line := range bytes.Lines(text) {
			if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == name {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	if cpu := field("/proc/cpuinfo", "model name"); cpu != "" {
		what += ", " + cpu
	}
	if memory := field("/proc/meminfo", "MemTotal"); memory != "" {
		what += ", memory " + memory
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		what += ", load before the run " + strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return what
}
