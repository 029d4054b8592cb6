package main

import (
	"context"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// The one file that needs pgonce's own packages: leave it behind when you copy the example.
var _ = func() bool { startLocal = startPrivate; return true }()

// startPrivate starts a PostgreSQL that listens on this machine alone, and keeps its data in a temporary folder. It is
// removed at the end, also when the program is killed.
func startPrivate(ctx context.Context) (dsn string, stop func() error, err error) {
	s, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		return "", nil, err
	}
	return s.DSN("postgres"), s.Stop, nil
}
