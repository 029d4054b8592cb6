package pg_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

// What an error prints of rows and parameters is gone, whatever is wrapped around it, and the rest is there.
func TestWithoutDetail(t *testing.T) {
	const secret = "secret"
	sentinel := errors.New("sentinel")
	for driver, dirty := range map[string]error{
		"pgx":    &pgconn.PgError{Code: "23505", ConstraintName: "k", Detail: secret, Where: secret, InternalQuery: secret},
		"lib/pq": &pq.Error{Code: "23505", Constraint: "k", Detail: secret, Where: secret, InternalQuery: secret},
	} {
		for wrapping, err := range map[string]error{
			"bare":    dirty,
			"wrapped": fmt.Errorf("stage: %w", dirty),
			"twice":   fmt.Errorf("door: %w", fmt.Errorf("stage: %w", dirty)),
			"joined":  errors.Join(sentinel, dirty, context.Canceled),
			"both":    fmt.Errorf("%w: %w", sentinel, dirty),
		} {
			clean := pg.WithoutDetail(err)
			require.Equal(t, err.Error(), clean.Error(), "%s, %s", driver, wrapping)
			require.NotContains(t, fmt.Sprintf("%+v %#v", clean, errors.Unwrap(clean)), secret)
			for _, target := range []error{sentinel, context.Canceled} {
				require.Equal(t, errors.Is(err, target), errors.Is(clean, target))
			}
			var state interface{ SQLState() string }
			require.ErrorAs(t, clean, &state)
			require.Equal(t, "23505", state.SQLState())
			require.NotContains(t, fmt.Sprintf("%#v", state), secret, "%s, %s", driver, wrapping)
			require.Contains(t, fmt.Sprintf("%#v", state), `"k"`)
		}
	}
	for _, err := range []error{
		nil, sentinel, &pgconn.PgError{Code: "40001"}, fmt.Errorf("x: %w", &pq.Error{Code: "40001"}), (*pgconn.PgError)(nil),
	} {
		require.True(t, pg.WithoutDetail(err) == err, "%v", err != nil)
	}
}

// An error whose own words may quote a value gets other words, and so does what is wrapped around it.
func TestWithoutContent(t *testing.T) {
	const secret = "secret"
	other := func(state string) string {
		if state == "22003" {
			return "other words"
		}
		return ""
	}
	for driver, dirty := range map[string]error{
		"pgx":    &pgconn.PgError{Code: "22003", Message: secret, Detail: secret},
		"lib/pq": &pq.Error{Code: "22003", Message: secret, Detail: secret},
	} {
		for wrapping, err := range map[string]error{
			"bare":    dirty,
			"wrapped": fmt.Errorf("stage: %w", dirty),
			"joined":  errors.Join(dirty, context.Canceled),
		} {
			clean := pg.WithoutContent(err, other)
			require.NotContains(t, fmt.Sprintf("%v %+v %#v", clean, clean, errors.Unwrap(clean)), secret, "%s, %s", driver,
				wrapping)
			require.ErrorContains(t, clean, "other words")
			require.Equal(t, errors.Is(err, context.Canceled), errors.Is(clean, context.Canceled))
		}
	}
	kept := &pgconn.PgError{Code: "22001", Message: "too long"}
	require.True(t, pg.WithoutContent(kept, other) == error(kept))
}
