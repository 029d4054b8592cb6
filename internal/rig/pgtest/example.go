package pgtest

import (
	"context"
	"crypto/rand"
	"strings"
)

// ExampleDSN is [DSN] for an Example function, which has no testing.TB: drop drops the database.
func ExampleDSN() (dsn string, drop func(), err error) {
	s, err := current()
	if err != nil {
		return "", nil, err
	}
	name := "pgonce_example_" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := s.createDatabase(ctx, name); err != nil {
		return "", nil, err
	}
	drop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		_ = s.dropDatabase(ctx, name)
	}
	return s.dsn(name), drop, nil
}
