// Command stores takes purchases from the App Store, Google Play and Stripe into one table, keyed by (store, purchase
// id), whatever the stores repeat, and in whatever order.
//
//	APPLE_ROOT=AppleRootCA-G3.cer APPLE_BUNDLE=com.example.app \
//	PLAY_PACKAGE=com.example.app PLAY_AUDIENCE=https://example.com/google-play \
//	PLAY_EMAIL=push@p.iam.gserviceaccount.com \
//	STRIPE_SECRET=whsec_... go run ./examples/stores -dsn 'postgres://me@localhost/mine'
//
// What to copy is appstore.go and googleplay.go, the providers, endpoints.go, which puts them together, and
// purchase.go, the effect. Its tests are named by the acceptance criteria that they show.
package main

import (
	"context"
	"crypto/x509"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/upsert"
)

//go:embed schema.sql
var schema string

func main() {
	dsn := flag.String("dsn", "", "the `database`")
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on, behind a proxy that speaks TLS")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := serve(ctx, *dsn, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "stores:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, dsn, addr string) error {
	c, err := fromEnvironment(ctx)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := prepare(ctx, pool, c); err != nil {
		return err
	}
	h, err := c.endpoints(pool)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// prepare makes the tables, and proves that their constraints hold.
func prepare(ctx context.Context, pool *pgxpool.Pool, c config) error {
	if err := dedup.Migrate(ctx, pool, c.table()); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	return errors.Join(dedup.Verify(ctx, pool, c.table()), upsert.Verify(ctx, pool, newest))
}

func fromEnvironment(ctx context.Context) (config, error) {
	roots := x509.NewCertPool()
	der, err := os.ReadFile(os.Getenv("APPLE_ROOT"))
	if err != nil {
		return config{}, fmt.Errorf("APPLE_ROOT: %w", err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return config{}, fmt.Errorf("APPLE_ROOT: %w", err)
	}
	roots.AddCert(root)
	return config{
		AppStore: AppStore{Roots: roots, Bundle: os.Getenv("APPLE_BUNDLE"), Environment: "Production"},
		GooglePlay: GooglePlay{
			Verifier: newVerifier(ctx, os.Getenv("PLAY_AUDIENCE"), googleKeys),
			Email:    os.Getenv("PLAY_EMAIL"), Package: os.Getenv("PLAY_PACKAGE"),
		},
		Stripe: webhook.Stripe{Secrets: []string{os.Getenv("STRIPE_SECRET")}},
		Play: func(context.Context, string) (Purchase, error) {
			// purchases.subscriptionsv2.get, with credentials of your own; until then the notification stays with Pub/Sub.
			return Purchase{}, errors.New("the Play Developer API is not set up")
		},
		Report: func(ctx context.Context, e webhook.Event, out idem.Outcome, err error) {
			level := slog.LevelInfo
			if err != nil {
				level = slog.LevelError
			}
			slog.Log(ctx, level, "webhook", "source", e.Source, "type", e.Type, "outcome", out.String(), "error", err)
		},
	}, nil
}
