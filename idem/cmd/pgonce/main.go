package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/pgerr"
)

// The exit statuses. They are promised in the package's documentation.
const (
	statusFound    = 1
	statusUsage    = 2
	statusDatabase = 3
)

// errFound ends a command that has printed what there is to look at; errUnconfirmed one that was to write.
var (
	errFound       = errors.New("found something to look at")
	errUnconfirmed = errors.New("not confirmed: nothing was written")
)

// commands is the command line.
type commands struct {
	DDL      ddlCmd      `cmd:"" name:"ddl" help:"Print the SQL that makes the table."`
	Migrate  migrateCmd  `cmd:"" help:"Make the table, or bring it to the newest version."`
	Verify   verifyCmd   `cmd:"" help:"Say what is wrong with the table, and what fixes it."`
	Lookup   lookupCmd   `cmd:"" help:"Show what the table holds of a key."`
	Pending  pendingCmd  `cmd:"" aliases:"open" help:"List reservations that nobody has settled, the oldest first."`
	Settle   settleCmd   `cmd:"" help:"Confirm or void a reservation, after a look at the provider."`
	Forget   forgetCmd   `cmd:"" help:"Delete a key, so that its next delivery runs again."`
	Purge    purgeCmd    `cmd:"" help:"Delete the keys that have expired."`
	Maintain maintainCmd `cmd:"" help:"Purge, or make and drop the partitions of a weekly table."`
	Inbox    inboxCmds   `cmd:"" help:"Look into an inbox, and replay what is dead."`
	Outbox   outboxCmds  `cmd:"" help:"Look into an outbox, and retry what is parked."`

	JSON    bool          `name:"json" help:"Print one JSON document."`
	Yes     bool          `help:"Write without asking."`
	Timeout time.Duration `default:"0" help:"End after this time (30s, 5m). 0: never."`
}

// session is what a command works with.
type session struct {
	ctx  context.Context
	in   io.Reader // for answers; nil where there is no terminal
	out  io.Writer
	err  io.Writer
	json bool
	yes  bool
	open func(context.Context) (*pgxpool.Pool, error)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &session{ctx: ctx, out: os.Stdout, err: os.Stderr, open: connect}
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		s.in = os.Stdin
	}
	os.Exit(run(s, os.Args[1:]))
}

// run runs a command line, and returns its exit status.
func run(s *session, args []string) (status int) {
	var c commands
	ended := -1
	parser, err := kong.New(&c, kong.Name("pgonce"), kong.Writers(s.out, s.err), kong.UsageOnError(),
		kong.Description("Shows, settles and maintains what pgonce keeps in PostgreSQL. The connection is DATABASE_URL, or "+
			"libpq's variables."),
		kong.Exit(func(code int) { ended = code }))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	parsed, err := parser.Parse(args)
	switch {
	case ended == 0: // help was printed
		return 0
	case err != nil:
		fmt.Fprintf(s.err, "pgonce: %v\n", err)
		return statusUsage
	}
	s.json, s.yes = c.JSON, c.Yes
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithTimeout(s.ctx, c.Timeout)
		defer cancel()
	}
	err = parsed.Run(s)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return statusFound
	}
	fmt.Fprintf(s.err, "pgonce: %v\n", tellable(err))
	var misuse *usageError
	if errors.As(err, &misuse) || errors.Is(err, errUnconfirmed) {
		return statusUsage
	}
	return statusDatabase
}

// usageError is a mistake in the command line that the parser cannot see.
type usageError struct{ error }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// connect opens the database of the environment.
func connect(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 2
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "pgonce"
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// tellable leaves out of err what says where the database is and who asks: drivers put both into their messages.
func tellable(err error) error {
	var parse *pgconn.ParseConfigError
	var refused *pgconn.ConnectError
	var server *pgconn.PgError
	switch {
	case errors.As(err, &parse):
		return errors.New("DATABASE_URL, or a variable of libpq, cannot be read")
	case errors.As(err, &refused) && errors.As(err, &server):
		return fmt.Errorf("no connection: the server says %s (SQLSTATE %s)", server.Severity, server.Code)
	case errors.As(err, &refused) && errors.Is(err, context.DeadlineExceeded):
		return errors.New("no connection: it took too long")
	case errors.As(err, &refused):
		return errors.New("no connection: is the server there, and DATABASE_URL (or PGHOST, PGPORT) right?")
	case pgerr.Code(err) != "":
		return fmt.Errorf("%w (SQLSTATE %s)", err, pgerr.Code(err))
	}
	return err
}
