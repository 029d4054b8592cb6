package recipes

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestRecipes delivers each payment twice, and one whose effect fails.
func TestRecipes(t *testing.T) {
	t.Parallel()
	for name, pay := range map[string]func(t *testing.T, db *sql.DB, p Payment) (idem.Outcome, error){
		"GORM": func(t *testing.T, db *sql.DB, p Payment) (idem.Outcome, error) {
			return payWithGORM(t.Context(), db, p)
		},
		"sqlx": func(t *testing.T, db *sql.DB, p Payment) (idem.Outcome, error) {
			all, out, err := payWithSQLX(t.Context(), sqlx.NewDb(db, "pgx"), p)
			if out == idem.Executed {
				require.Contains(t, all, p)
			}
			return out, err
		},
		"sqlx's transaction": func(t *testing.T, db *sql.DB, p Payment) (idem.Outcome, error) {
			return payInTx(t.Context(), sqlx.NewDb(db, "pgx"), p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open("pgx", pgtest.DSN(t))
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			require.NoError(t, idemsql.Migrate(t.Context(), db))
			_, err = db.ExecContext(t.Context(),
				`CREATE TABLE payments (id text PRIMARY KEY, amount int NOT NULL CHECK (amount > 0))`)
			require.NoError(t, err)

			p := Payment{ID: "pay_1", Amount: 5}
			for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
				out, err := pay(t, db, p)
				require.NoError(t, err)
				require.Equal(t, want, out)
			}
			_, err = pay(t, db, Payment{ID: "pay_2", Amount: -1})
			require.Error(t, err)

			var paid, keys int
			require.NoError(t, db.QueryRowContext(t.Context(),
				`SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM processed_events)`).Scan(&paid, &keys))
			require.Equal(t, []int{1, 1}, []int{paid, keys})
		})
	}
}
