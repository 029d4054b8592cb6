package pgtest

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/jackc/pgx/v5"
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
		_, _ = s.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`)
	}
	return s.dsn(name), drop, nil
}
