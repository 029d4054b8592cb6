package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
)

// table is the dedup table that a command works on.
type table struct {
	Table     string        `default:"processed_events" help:"The table, with its schema or without."`
	Layout    string        `default:"plain" help:"plain, weekly, or hash:N for N partitions: as the table was made."`
	Retention time.Duration `default:"0" help:"How long keys are kept, as the programs say. 0: the library's default."`
}

func (t table) of() (dedup.Table, error) {
	d := dedup.Table{Name: t.Table, Retention: t.Retention}
	kind, n, counted := strings.Cut(t.Layout, ":")
	switch parts, err := strconv.Atoi(n); {
	case t.Layout == "plain":
	case t.Layout == "weekly":
		d.Layout = dedup.Weekly
	case kind == "hash" && counted && err == nil && parts > 0:
		d.Layout = dedup.Hash(parts)
	default:
		return d, usage("--layout is plain, weekly or hash:N")
	}
	if err := d.Validate(); err != nil {
		return d, &usageError{err}
	}
	return d, nil
}

// on calls fn with the table and a pool.
func (t table) on(s *session, fn func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error) error {
	d, err := t.of()
	if err != nil {
		return err
	}
	return s.connected(func(ctx context.Context, db *pgxpool.Pool) error { return fn(ctx, db, d) })
}

func (s *session) connected(fn func(context.Context, *pgxpool.Pool) error) error {
	db, err := s.open(s.ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return fn(s.ctx, db)
}

type ddlCmd struct{ table }

func (c *ddlCmd) Run(s *session) error {
	d, err := c.of()
	if err != nil {
		return err
	}
	return s.print(map[string]string{"ddl": d.DDL()}, func() { fmt.Fprint(s.out, d.DDL()) })
}

type migrateCmd struct{ table }

func (c *migrateCmd) Run(s *session) error {
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		if err := s.confirm("make the table %s, or bring it to the newest version (pgonce ddl prints the SQL)",
			c.Table); err != nil {
			return err
		}
		if err := dedup.Migrate(ctx, db, d); err != nil {
			return err
		}
		return s.print(map[string]string{"migrated": c.Table}, func() { fmt.Fprintf(s.out, "%s is up to date\n", c.Table) })
	})
}

type verifyCmd struct{ table }

// problem is a dedup.Problem in JSON.
type problem struct {
	Table, Message, Fix string
	Kind                dedup.Kind
}

func (c *verifyCmd) Run(s *session) error {
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		err := dedup.Verify(ctx, db, d)
		var found *dedup.VerifyError
		if err != nil && !errors.As(err, &found) {
			return err
		}
		all := []problem{}
		if found != nil {
			for _, p := range found.Problems {
				all = append(all, problem{p.Table, p.Message, p.Fix, p.Kind})
			}
		}
		err = s.print(map[string]any{"table": c.Table, "problems": all}, func() {
			if found == nil {
				fmt.Fprintf(s.out, "%s: a valid unique constraint backs every key\n", c.Table)
				return
			}
			fmt.Fprintln(s.out, found.Error())
		})
		if err == nil && found != nil {
			return errFound
		}
		return err
	})
}

type purgeCmd struct {
	table
	DryRun bool `help:"Count what would be deleted, and delete nothing."`
	Batch  int  `default:"0" help:"Keys in one transaction. 0: the library's default."`
}

func (c *purgeCmd) Run(s *session) error {
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		cleaner := dedup.Cleaner{Table: d, Batch: c.Batch}
		n, err := cleaner.Count(ctx, db)
		if err != nil || c.DryRun {
			return s.stats(n, err, "would be deleted")
		}
		if n.Deleted == 0 {
			return s.stats(n, nil, "have expired")
		}
		if err := s.confirm("delete %d keys of %s that have expired", n.Deleted, c.Table); err != nil {
			return err
		}
		stats, err := cleaner.Purge(ctx, db)
		return s.stats(stats, err, "deleted")
	})
}

type maintainCmd struct{ table }

func (c *maintainCmd) Run(s *session) error {
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		if err := s.confirm("maintain %s: delete what has expired, or make and drop its partitions", c.Table); err != nil {
			return err
		}
		stats, err := d.Maintain(ctx, db)
		return s.stats(stats, err, "deleted")
	})
}

// stats prints what a purge has done, or would do. Somebody else's purge is something to look at, and no failure.
func (s *session) stats(n dedup.Stats, err error, what string) error {
	if errors.Is(err, dedup.ErrBusy) {
		fmt.Fprintln(s.err, "pgonce: another purge of this table is at work")
		return errFound
	}
	printed := s.print(n, func() {
		fmt.Fprintf(s.out, "%d keys %s\n", n.Deleted, what)
		for _, part := range []struct {
			names []string
			what  string
		}{{n.Made, "made"}, {n.Dropped, "dropped"}, {n.Kept, "kept: it holds what is not done, or is not ours"}} {
			for _, name := range part.names {
				fmt.Fprintf(s.out, "partition %s %s\n", name, part.what)
			}
		}
	})
	return errors.Join(err, printed)
}
