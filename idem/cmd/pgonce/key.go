package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// keyArgs name a key.
type keyArgs struct {
	table
	Source    string    `arg:"" help:"Who made the id."`
	Operation string    `arg:"" help:"What is done with it."`
	Part      []string  `arg:"" help:"The id, or its parts in their order."`
	Hashed    bool      `help:"The program makes the key by HashedKey."`
	At        time.Time `help:"The key's own time (2026-03-01T12:00:00Z); a weekly table needs it."`
}

func (k keyArgs) key() (idem.Key, error) {
	scope := idem.Scope{Source: k.Source, Operation: k.Operation}
	key := scope.Key(k.Part...)
	if k.Hashed {
		key = scope.HashedKey(k.Part...)
	}
	if !k.At.IsZero() {
		key = key.OccurredAt(k.At)
	}
	if err := key.Validate(); err != nil {
		return key, &usageError{err}
	}
	return key, nil
}

func (k keyArgs) on(
	s *session, fn func(ctx context.Context, db *pgxpool.Pool, once idem.Once, key idem.Key) error,
) error {
	key, err := k.key()
	if err != nil {
		return err
	}
	return k.table.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		return fn(ctx, db, idem.Once{Table: d, MaxWait: 10 * time.Second}, key)
	})
}

// record is an idem.Record in JSON.
type record struct {
	Source, Operation, ID string
	State                 string
	ProcessedAt           time.Time
	Age                   string
	Attempt               int
	PayloadSHA256         []byte          `json:",omitempty"`
	Value                 json.RawMessage `json:",omitempty"`
}

func recordOf(k idem.Key, r idem.Record, value bool) record {
	got := record{
		k.Scope().Source, k.Scope().Operation, k.ID(), r.State.String(), r.ProcessedAt, r.Age.Round(time.Second).String(),
		r.Attempt, r.PayloadHash, nil,
	}
	if value && json.Valid(r.Value) {
		got.Value = r.Value
	}
	return got
}

type lookupCmd struct {
	keyArgs
	Value bool `help:"Show the stored answer, too: it may hold personal data."`
}

func (c *lookupCmd) Run(s *session) error {
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, once idem.Once, key idem.Key) error {
		found, err := once.Lookup(ctx, db, key)
		if errors.Is(err, idem.ErrNotFound) {
			fmt.Fprintln(s.err, "pgonce: the table has no such key")
			return errFound
		}
		if err != nil {
			return err
		}
		return s.records([]record{recordOf(key, found, c.Value)})
	})
}

type pendingCmd struct {
	table
	Source    string `help:"Only this source."`
	Operation string `help:"Only this operation."`
	Limit     int    `default:"100" help:"At most so many."`
}

func (c *pendingCmd) Run(s *session) error {
	return c.table.on(s, func(ctx context.Context, db *pgxpool.Pool, d dedup.Table) error {
		all, err := idem.Once{Table: d}.Pending(ctx, db, idem.Scope{Source: c.Source, Operation: c.Operation}, c.Limit)
		if err != nil {
			return err
		}
		list := make([]record, len(all))
		for i, p := range all {
			list[i] = recordOf(p.Key, p.Record, false)
		}
		return s.records(list)
	})
}

// records prints rows of the table.
func (s *session) records(all []record) error {
	return s.print(all, func() {
		w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintln(w, "SOURCE\tOPERATION\tID\tSTATE\tAGE\tATTEMPT")
		for _, r := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\n",
				shown(r.Source), shown(r.Operation), shown(r.ID), r.State, r.Age, r.Attempt)
		}
	})
}

type settleCmd struct {
	keyArgs
	Confirm bool          `xor:"how" required:"" help:"It took effect: store --value, and every later delivery gets it."`
	Void    bool          `xor:"how" required:"" help:"It did not take effect: the next delivery tries again."`
	Value   string        `type:"existingfile" help:"A file with the answer, as the program's type is in JSON."`
	Reason  string        `required:"" help:"What was seen at the provider. It is logged."`
	Lease   time.Duration `default:"5m" help:"For how long this command holds the key while it asks."`
}

// Run takes the key over first, so that no delivery can make another attempt between the look and the answer.
func (c *settleCmd) Run(s *session) error {
	if strings.TrimSpace(c.Reason) == "" {
		return usage("--reason is empty")
	}
	if c.Value != "" && c.Void {
		return usage("--value goes with --confirm")
	}
	var value []byte
	if c.Value != "" {
		var err error
		if value, err = os.ReadFile(c.Value); err != nil {
			return &usageError{err}
		}
	}
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, once idem.Once, key idem.Key) error {
		found, err := once.Lookup(ctx, db, key)
		switch {
		case errors.Is(err, idem.ErrNotFound):
			fmt.Fprintln(s.err, "pgonce: the table has no such key")
			return errFound
		case err != nil:
			return err
		case found.State == idem.Done || found.State == idem.FinallyFailed:
			fmt.Fprintf(s.err, "pgonce: the key is settled: %s\n", found.State)
			return errFound
		}
		how := map[bool]string{true: "confirm", false: "void"}[c.Confirm]
		what := map[bool]string{
			true:  "every later delivery is a duplicate",
			false: "the next delivery runs it again",
		}[c.Confirm]
		if err := s.confirm("%s %s, attempt %d, open for %s: %s", how, shown(key.ID()), found.Attempt,
			found.Age.Round(time.Second), what); err != nil {
			return err
		}
		held, out, err := once.Reserve(ctx, db, key, c.Lease)
		switch {
		case errors.Is(err, idem.ErrInProgress):
			fmt.Fprintln(s.err, "pgonce: an attempt holds the key now; wait until its lease has run out")
			return errFound
		case err != nil:
			return err
		case out == idem.Duplicate:
			fmt.Fprintln(s.err, "pgonce: somebody else has settled it meanwhile")
			return errFound
		}
		if c.Confirm {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return held.Confirm(ctx, tx, value) })
		} else {
			err = held.Void(ctx, db)
		}
		if err != nil {
			return err
		}
		s.logged(how, key, held.Attempt, c.Reason)
		return s.print(map[string]string{"settled": how}, func() { fmt.Fprintf(s.out, "settled: %s\n", how) })
	})
}

type forgetCmd struct {
	keyArgs
	Reason string `required:"" help:"Why its effect may happen again. It is logged."`
}

func (c *forgetCmd) Run(s *session) error {
	if strings.TrimSpace(c.Reason) == "" {
		return usage("--reason is empty")
	}
	return c.on(s, func(ctx context.Context, db *pgxpool.Pool, once idem.Once, key idem.Key) error {
		if err := s.confirm("delete %s: its next delivery runs again", shown(key.ID())); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return once.Forget(ctx, tx, key) })
		if errors.Is(err, idem.ErrNotFound) {
			fmt.Fprintln(s.err, "pgonce: the table has no such key")
			return errFound
		}
		if err != nil {
			return err
		}
		s.logged("forget", key, 0, c.Reason)
		return s.print(map[string]string{"forgotten": key.ID()}, func() { fmt.Fprintln(s.out, "forgotten") })
	})
}

// logged writes one line of JSON to standard error, for the record: who decided what, and why.
func (s *session) logged(what string, key idem.Key, attempt int, reason string) {
	who := "unknown"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	slog.New(slog.NewJSONHandler(s.err, nil)).Info("pgonce "+what, "source", key.Scope().Source,
		"operation", key.Scope().Operation, "id", key.ID(), "attempt", attempt, "by", who, "reason", reason)
}

// shown quotes what a terminal could take for a command, or a reader for a column: ids come from outside.
func shown(id string) string {
	if strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return strconv.QuoteToASCII(id)
	}
	return id
}

// print prints v as JSON, or what text writes.
func (s *session) print(v any, text func()) error {
	if !s.json {
		text()
		return nil
	}
	e := json.NewEncoder(s.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// confirm says what will be written, and asks.
func (s *session) confirm(format string, args ...any) error {
	fmt.Fprintf(s.err, "pgonce will %s.\n", fmt.Sprintf(format, args...))
	if s.yes {
		return nil
	}
	if s.in == nil {
		return errUnconfirmed
	}
	fmt.Fprint(s.err, `Type "yes" to go on: `)
	var answer string
	if _, err := fmt.Fscanln(s.in, &answer); err != nil && !errors.Is(err, io.EOF) && answer != "" {
		return err
	}
	if answer != "yes" {
		return errUnconfirmed
	}
	return nil
}
