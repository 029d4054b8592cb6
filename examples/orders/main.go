// Command orders is an order service that tells a shipping service of every step of its orders, by way of an outbox and
// NATS JetStream: the service appends events in its own transactions, a relay publishes them, and a consumer makes the
// effect of each once, with the event's id as its key.
//
//	go run ./examples/orders
//	go run ./examples/orders -dsn postgres://me@localhost/mine -nats nats://localhost:4222
//
// To copy: service.go, publisher.go, consumer.go.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
)

//go:embed schema.sql
var schema string

// startLocal starts a database for this run. It is set by local.go, and nil where that file was left behind.
var startLocal func(context.Context) (dsn string, stop func() error, err error)

func main() {
	dsn := flag.String("dsn", "", "connection `string` of the database; without it a private PostgreSQL is started")
	url := flag.String("nats", "", "`URL` of a NATS server with JetStream; without it one is started in this process")
	flag.Parse()
	if err := run(context.Background(), *dsn, *url); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dsn, url string) (err error) {
	if dsn == "" {
		if startLocal == nil {
			return errors.New("name a database with -dsn")
		}
		var stop func() error
		if dsn, stop, err = startLocal(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if url == "" {
		dir, err := os.MkdirTemp("", "orders")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		s, err := broker(dir)
		if err != nil {
			return err
		}
		defer func() { s.Shutdown(); s.WaitForShutdown() }()
		url = s.ClientURL()
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	return ship(ctx, pool, nc)
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := errors.Join(dedup.Migrate(ctx, pool), outbox.Migrate(ctx, pool)); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, schema, pgx.QueryExecModeSimpleProtocol)
	return err
}

// ship moves ten orders five steps each, and waits until all has been shipped.
func ship(ctx context.Context, pool *pgxpool.Pool, nc *nats.Conn) error {
	const orders, steps = 10, 5
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := prepare(ctx, js, 30*time.Second); err != nil {
		return err
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	wake := make(chan struct{}, 1)
	go func() { _ = outbox.Relay{Publisher: publisher{js}, Wake: wake}.Run(work, pool) }()
	var shipped atomic.Int64
	for p := range partitions {
		go func() {
			_ = consume(work, js, pool, p, func(outcome idem.Outcome, err error) {
				if err == nil && outcome == idem.Executed {
					shipped.Add(1)
				}
			})
		}()
	}
	begun := time.Now()
	for step := 1; step <= steps; step++ {
		for n := range orders {
			if err := move(ctx, pool, fmt.Sprintf("order-%d-%d", begun.UnixNano(), n), step); err != nil {
				return err
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	for shipped.Load() < orders*steps {
		if time.Since(begun) > time.Minute {
			return errors.New("not everything was shipped in a minute")
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Printf("%d orders in %d steps each: %d events shipped, in order, in %v\n",
		orders, steps, shipped.Load(), time.Since(begun).Round(time.Millisecond))
	return nil
}

// broker starts a NATS server with JetStream in this process, on a free port of this machine.
func broker(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true})
	if err != nil {
		return nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("NATS does not answer")
	}
	return s, nil
}
