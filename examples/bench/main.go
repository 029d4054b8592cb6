// Command bench measures pgonce beside the same work by hand, beside the usual other ways to do something once,
// and beside River and DBOS. It counts what each of them lost or did twice, and prints one page of Markdown and
// one drawing.
//
//	go run ./examples/bench
//	go run ./examples/bench -dsn 'postgres://me@localhost/mine' -parts load -rows 1000000,10000000
//
// README.md in this folder says what is measured and how to read it. The program works in two schemas of its
// own, which it drops at the end. The exit code is 0 where everything was measured and no count of pgonce's is
// other than 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const allParts = "compare,counts,queues,hot,load"

// config is how much is measured, and where.
type config struct {
	dsn, out string
	parts    []string
	fast     bool

	each      time.Duration // for each comparison, under each condition
	least     int           // operations of each way, however long they take
	messages  int           // of each way's counts
	turns     int           // of the queues, and of the load
	ids       int           // of a turn of the queues
	rounds    int           // of the hot key
	rows      []int         // sizes of the load's tables
	turn      time.Duration // of the load
	warm      time.Duration // of the load, before what counts
	loadWorks []int         // numbers of workers of the load
}

// local starts a server of this program's own, where local.go was not left behind.
type local struct{}

func main() {
	cfg := config{least: 20, loadWorks: []int{1, 8}}
	flag.StringVar(&cfg.dsn, "dsn", "", "`database` to measure; without it\n"+
		" a private server is started, with PostgreSQL's own settings")
	flag.StringVar(&cfg.out, "out", "bench", "`file` to write, without its end: .md and .svg are added")
	flag.BoolVar(&cfg.fast, "fast", false, "the private server does not wait for the disk:\n"+
		"the cost of the code shows, not that of the disk")
	parts := flag.String("parts", allParts, "what to do")
	flag.DurationVar(&cfg.each, "each", 15*time.Second, "time for each comparison under each condition")
	flag.IntVar(&cfg.messages, "messages", 1000, "messages for the counts of each way")
	flag.IntVar(&cfg.turns, "turns", 7, "turns of the queues, and of the load")
	flag.IntVar(&cfg.ids, "ids", 200, "messages in a turn of the queues")
	flag.IntVar(&cfg.rounds, "rounds", 51, "rounds of the hot key")
	rows := flag.String("rows", "10000,1000000", "sizes of the load's tables;\n"+
		"10 million rows of each table are 20 GB in all")
	flag.DurationVar(&cfg.turn, "turn", 2*time.Second, "time of a turn of the load")
	flag.DurationVar(&cfg.warm, "warm", 5*time.Second, "load on each table before its first turn")
	flag.Parse()
	cfg.parts = strings.Split(*parts, ",")
	for _, p := range cfg.parts {
		if !slices.Contains(strings.Split(allParts, ","), p) {
			fmt.Fprintf(os.Stderr, "bench: no part %q: %s\n", p, allParts)
			os.Exit(2)
		}
	}
	for s := range strings.SplitSeq(*rows, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			fmt.Fprintf(os.Stderr, "bench: -rows: %q is no number of rows\n", s)
			os.Exit(2)
		}
		cfg.rows = append(cfg.rows, n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, cfg, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures, and writes the page to out and to the files. What it is at goes to progress.
func run(ctx context.Context, cfg config, out, progress io.Writer) (err error) {
	if cfg.dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context, fast bool) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		fmt.Fprintln(progress, "starting a private PostgreSQL")
		var stop func() error
		if cfg.dsn, stop, err = private.start(ctx, cfg.fast); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	b, err := open(ctx, cfg, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	p, err := b.measure(ctx)
	if err != nil {
		return err
	}
	page := p.markdown()
	if _, err := io.WriteString(out, page); err != nil {
		return err
	}
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(cfg.out), 0o777),
		os.WriteFile(cfg.out+".md", []byte(page), 0o666),
		os.WriteFile(cfg.out+".svg", []byte(p.svg()), 0o666),
	); err != nil {
		return err
	}
	return p.wrong()
}

// measure does the parts that were asked for, one after the other.
func (b *bench) measure(ctx context.Context) (page, error) {
	p, err := b.describe(ctx)
	if err != nil {
		return p, err
	}
	for _, part := range []struct {
		name string
		do   func(context.Context, *page) error
	}{
		{"compare", b.compare}, {"counts", b.counts}, {"queues", b.queues}, {"hot", b.hotKey}, {"load", b.load},
	} {
		if !slices.Contains(b.cfg.parts, part.name) {
			continue
		}
		begun := time.Now()
		if err := part.do(ctx, &p); err != nil {
			return p, fmt.Errorf("%s: %w", part.name, err)
		}
		b.say("%s took %v", part.name, time.Since(begun).Round(time.Second))
	}
	return p, nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }
