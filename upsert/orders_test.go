package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// entity is deleted by a time or by a bool, which the tests choose.
type entity struct {
	ID     string     `db:"id"`
	A      *string    `db:"a"`
	B      string     `db:"b"` // NOT NULL; what a deletion leaves out is ""
	C      *string    `db:"c"` // NOT NULL DEFAULT 'd'
	Gone   *bool      `db:"gone"`
	GoneAt *time.Time `db:"gone_at"`
	V      int        `db:"v"`
}

const entityColumns = "id text, a text, b text NOT NULL, c text NOT NULL DEFAULT 'd', gone bool, gone_at " +
	"timestamptz, v int"

// permutations calls yield with every order of es.
func permutations[E any](es []E, yield func([]E)) {
	if len(es) == 0 {
		yield(nil)
		return
	}
	for i := range es {
		rest := slices.Delete(slices.Clone(es), i, i+1)
		permutations(rest, func(p []E) { yield(append([]E{es[i]}, p...)) })
	}
}

// byHand runs the statement of SQL() with the columns of row.
func byHand(t *testing.T, db execer, stmt upsert.Statement, row map[string]any, mode ...any) error {
	t.Helper()
	sql, columns := stmt.SQL()
	for _, c := range columns {
		mode = append(mode, row[c])
	}
	_, err := db.Exec(context.Background(), sql, mode...)
	return err
}

// The events of an entity, of which one is its deletion, end in one row, in whatever order they come, and by every
// form of the statement.
func TestEveryOrderEndsTheSame(t *testing.T) {
	t.Parallel()
	created := entity{A: ptr("a1"), B: "b1", C: ptr("c1"), V: 1}
	updated := entity{A: ptr("a2"), B: "b2", C: ptr("c2"), V: 2}
	gone := func(e entity) entity { e.Gone, e.GoneAt = ptr(true), &noon; return e }
	at := func(e entity, v int) entity { e.V = v; return e }
	full := gone(entity{A: ptr("a3"), B: "b3", C: ptr("c3"), V: 3})
	bare := gone(entity{V: 3})
	for _, tt := range []struct {
		name   string
		events []entity
		want   string
		plain  bool // SQL() can write it: it knows no defaults
	}{
		{"deleted last", []entity{created, updated, full}, "a3 b3 c3 gone 3", true},
		{"deleted last, without content", []entity{created, updated, bare}, "NULL  d gone 3", false},
		{"deleted between", []entity{created, at(full, 2), at(updated, 3)}, "a2 b2 c2 here 3", true},
		{"deleted twice", []entity{created, at(full, 2), bare, at(updated, 0)}, "NULL  d gone 3", false},
		{"deleted and restored", []entity{created, updated, full, at(created, 4)}, "a1 b1 c1 here 4", true},
	} {
		for _, mark := range []string{"gone", "gone_at"} {
			t.Run(tt.name+" by "+mark, func(t *testing.T) {
				t.Parallel()
				onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
					ctx := context.Background()
					create(t, pool, kind, "entities", entityColumns)
					stmt := upsert.Into[entity]("entities").OnConflict("id").Set("a", "b",
						"c").Tombstone(mark).Version("v").MustBuild()
					forms := map[string]func(tx pgx.Tx, es []entity) error{
						"Exec": func(tx pgx.Tx, es []entity) error {
							for _, e := range es {
								if _, err := stmt.Exec(ctx, tx, e); err != nil {
									return err
								}
							}
							return nil
						},
						"ExecMany": func(tx pgx.Tx, es []entity) error {
							_, err := stmt.ExecMany(ctx, tx, slices.Values(es), nil)
							return err
						},
						"ExecMany, one by one": func(tx pgx.Tx, es []entity) error {
							for _, e := range es {
								if _, err := stmt.ExecMany(ctx, tx, slices.Values([]entity{e}), nil); err != nil {
									return err
								}
							}
							return nil
						},
					}
					if tt.plain {
						forms["SQL"] = func(tx pgx.Tx, es []entity) error {
							for _, e := range es {
								row := map[string]any{"id": e.ID, "a": e.A, "b": e.B, "c": e.C, "gone": e.Gone, "gone_at": e.GoneAt, "v": e.V}
								if err := byHand(t, tx, stmt, row); err != nil {
									return err
								}
							}
							return nil
						}
					}
					tx, err := pool.Begin(ctx)
					require.NoError(t, err)
					defer tx.Rollback(ctx)
					n := 0
					for form, apply := range forms {
						permutations(tt.events, func(es []entity) {
							n++
							for i := range es {
								es[i].ID = fmt.Sprintf("%d-%d", n%10, n)
							}
							require.NoError(t, apply(tx, es), form)
							got := get[string](t, tx, "SELECT coalesce(a, 'NULL') || ' ' || b || ' ' || c || ' ' || CASE WHEN gone OR "+
								"gone_at IS NOT NULL "+
								"THEN 'gone' ELSE 'here' END || ' ' || v FROM entities WHERE id = $1", es[0].ID)
							require.Equal(t, tt.want, got, "%s of %v", form, es)
						})
					}
				})
			})
		}
	}
}

// An event without a value for a column that may not be NULL changes the rest of a stored row: the statement of SQL()
// too, in every mode, and for every kind of key. The default of such a column is Exec's alone.
func TestPlainSQLWithoutValue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE people (id varchar(20), tenant int, name varchar(5) NOT NULL, plan text NOT NULL "+
		"DEFAULT 'free', note text, "+
		"at timestamptz(0) NOT NULL, v int, PRIMARY KEY (tenant, id))")
	exec(t, pool, "CREATE UNIQUE INDEX ON people (lower(id)) WHERE tenant = 1")
	type person struct {
		ID     string     `db:"id"`
		Tenant int        `db:"tenant"`
		Name   *string    `db:"name"`
		Plan   *string    `db:"plan"`
		Note   *string    `db:"note"`
		At     *time.Time `db:"at"`
		V      int        `db:"v"`
	}
	all := upsert.Into[person]("people").SetIfNotNull("name", "plan", "note", "at")
	for name, stmt := range map[string]*upsert.Stmt[person]{
		"columns": all.OnConflict("id", "tenant").Version("v").MustBuild(),
		"expression, and predicate": all.OnConflict("lower(id)").Where("tenant = 1").SetOnInsert("id",
			"tenant").Version("v").MustBuild(),
		"last wins": all.OnConflict("id", "tenant").SetOnInsert("v").LastWins().MustBuild(),
	} {
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
			pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		} {
			exec(t, pool, "TRUNCATE people")
			row := func(v int, name, plan, note any) map[string]any {
				return map[string]any{"id": "a", "tenant": 1, "name": name, "plan": plan, "note": note, "at": noon, "v": v}
			}
			stored := func() string {
				return get[string](t, pool, "SELECT concat_ws(' ', name, plan, note, at AT TIME ZONE 'UTC') FROM people")
			}
			require.NoError(t, byHand(t, pool, stmt, row(1, "Ann", "pro", nil), mode), name)
			next := row(2, nil, nil, "n")
			next["at"] = nil
			require.NoError(t, byHand(t, pool, stmt, next, mode), name)
			require.Equal(t, "Ann pro n 2026-03-01 12:00:00", stored(), name)
			require.NoError(t, byHand(t, pool, stmt, row(3, "Bob", nil, nil), mode), name)
			require.Equal(t, "Bob pro n 2026-03-01 12:00:00", stored(), name)

			exec(t, pool, "TRUNCATE people")
			var pgErr *pgconn.PgError
			require.ErrorAs(t, byHand(t, pool, stmt, row(1, "Ann", nil, nil), mode), &pgErr, name)
			require.Equal(t, "23502", pgErr.Code)
			_, err := stmt.Exec(context.Background(), pool, person{ID: "a", Tenant: 1, Name: ptr("Ann"), At: &noon, V: 1})
			require.NoError(t, err)
			require.Equal(t, "Ann free 2026-03-01 12:00:00", stored())
		}
	}
}
