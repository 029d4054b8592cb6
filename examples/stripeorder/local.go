package main

import (
	"context"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// This file alone needs what is internal to pgonce. A copy of the example does without it, and takes -dsn.

// start starts a PostgreSQL for this run, on this machine and for this program only. Nothing of it is left behind.
func (local) start(ctx context.Context) (dsn string, stop func() error, err error) {
	s, err := pgserver.Start(ctx, pgserver.Config{Settings: pgserver.FastAndUnsafe()})
	if err != nil {
		return "", nil, err
	}
	return s.DSN("postgres"), s.Stop, nil
}
