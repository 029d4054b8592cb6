package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
	"github.com/pgonce/pgonce/upsert"
)

// No error holds what a row holds, in any field, whatever the server would say of it: a key or a payload ends in logs
// otherwise.
func TestErrorsHoldNoContent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	type secret struct {
		ID string `db:"id"`
		A  any    `db:"a"`
		V  int    `db:"v"`
	}
	const key = "k3cret"
	exec(t, pool, `
		CREATE TYPE mood AS ENUM ('calm');
		CREATE FUNCTION strict(v text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
		  EXECUTE format('SELECT %L::int', v); RETURN true;
		END$$;
		DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET log_parameter_max_length_on_error = -1', current_database()); END$$`,
		pgx.QueryExecModeSimpleProtocol)
	pool.Reset()
	cases := []struct {
		column, code string
		value        any
	}{
		{"a int", "22P02", "s3cret"},
		{"a int2", "22003", "543210"},
		{"a varchar(3)", "22001", "s3cret"},
		{"a mood", "22P02", "s3cret"},
		{"a date", "22007", "s3cret"},
		{"a date", "22008", "2026-13-40"},
		{"a json", "22P02", "s3cret"},
		{"a text CHECK (a <> 's3cret')", "23514", "s3cret"},
		{"a text UNIQUE", "23505", "s3cret"},
		{"a text REFERENCES parents", "23503", "s3cret"},
		{"a text, n int NOT NULL", "23502", "s3cret"},
		{"a text CHECK (strict(a))", "22P02", "s3cret"},
		{"a bytea", "22023", `\xs3cret`},
	}
	exec(t, pool, "CREATE TABLE parents (a text PRIMARY KEY)")
	for _, tt := range cases {
		exec(t, pool, "DROP TABLE IF EXISTS secrets")
		exec(t, pool, "CREATE TABLE secrets (id text PRIMARY KEY, "+tt.column+", v int)")
		if tt.code == "23505" {
			exec(t, pool, "INSERT INTO secrets VALUES ('other', 's3cret', 1)")
		}
		row := secret{key, tt.value, 1}
		stmt := upsert.Into[secret]("secrets").OnConflict("id").Set("a").Version("v").MustBuild()
		for _, d := range drivers(t, cfg) {
			_, one := stmt.Exec(ctx, d.db, row)
			_, many := stmt.ExecMany(ctx, d.db, slices.Values([]secret{row}), nil)
			_, told := stmt.ExecMany(ctx, d.db, slices.Values([]secret{row, row}), func(int, upsert.Result[secret]) {})
			for form, err := range map[string]error{"one": one, "many": many, "told": told} {
				name := fmt.Sprintf("%s: %s, %s", tt.column, d.name, form)
				if errors.Is(err, upsert.ErrInvalidRow) {
					continue // refused before it was sent
				}
				require.Equal(t, tt.code, pgerr.Code(err), "%s: %v", name, err)
				text := err.Error() + everyField(err)
				require.NotContains(t, text, key, name)
				require.NotContains(t, text, fmt.Sprint(tt.value), name)
				require.Contains(t, text, "secrets")
			}
		}
	}
}

// everyField prints the exported fields of the structs that err is made of.
func everyField(err error) (s string) {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		s = everyField(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			s += everyField(cause)
		}
	}
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				s += fmt.Sprintf(" %v", v.Field(i))
			}
		}
	}
	return s
}
