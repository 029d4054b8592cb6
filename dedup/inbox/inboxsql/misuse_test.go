package inboxsql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
)

// A handler that ends its transaction in SQL text is found, whatever it then returns, and also where another
// transaction has begun at once: its message is dead, and not handled.
func TestEndsTheTransaction(t *testing.T) {
	t.Parallel()
	// As a claim of idem's would, in the next transaction.
	const claims = `SELECT set_config('pgonce.mark', '4611686018427387905', true)`
	for name, tc := range map[string]struct {
		sends []string
		kept  int
	}{
		"COMMIT":                                {[]string{`COMMIT`}, 1},
		"ROLLBACK":                              {[]string{`ROLLBACK`}, 0},
		"COMMIT AND CHAIN":                      {[]string{`COMMIT AND CHAIN`}, 1},
		"ROLLBACK AND CHAIN":                    {[]string{`ROLLBACK AND CHAIN`}, 0},
		"COMMIT AND CHAIN, and another claim":   {[]string{`COMMIT AND CHAIN`, claims}, 1},
		"ROLLBACK AND CHAIN, and another claim": {[]string{`ROLLBACK AND CHAIN`, claims}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDoor(t, func(t *testing.T, d door, dsn string, db *sql.DB) {
				drain := d.open(t, dsn, nil)
				put(t, db, "nil", "fails", "good")
				s, err := drain(t.Context(), inbox.Worker{MinRetry: time.Hour},
					func(ctx context.Context, tx execer, m inbox.Message) error {
						err := effect(ctx, tx, m)
						if m.ID == "good" {
							return err
						}
						for _, q := range tc.sends {
							err = errors.Join(err, tx.exec(ctx, q))
						}
						if m.ID == "fails" {
							return errors.Join(err, errors.New("fails"))
						}
						return err
					})
				require.ErrorIs(t, err, inbox.ErrMisuse)
				require.Equal(t, inbox.Stats{Handled: 1, Failed: 2, Dead: 2}, s)
				require.Equal(t, tc.kept, count(t, db, `SELECT count(*) FROM effects WHERE id = 'nil'`))
				require.Equal(t, tc.kept, count(t, db, `SELECT count(*) FROM effects WHERE id = 'fails'`))
				require.Equal(t, 1, count(t, db, `SELECT count(*) FROM effects WHERE id = 'good'`))
				require.Equal(t, 2, count(t, db, `SELECT count(*) FROM inbox WHERE error_class = 'misuse' AND attempt = 1`))
			})
		})
	}
}
