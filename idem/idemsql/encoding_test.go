package idemsql_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// sessions are how each driver gets a session in a client_encoding; "" is the driver's own.
var sessions = []struct {
	name string
	open func(t *testing.T, dsn, encoding string) (verify func() error, run func(idem.Key) (idem.Outcome, error))
}{
	{"pgx", func(t *testing.T, dsn, encoding string) (func() error, func(idem.Key) (idem.Outcome, error)) {
		conn, err := pgx.ConnectConfig(t.Context(), encoded(t, dsn, encoding))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		run := func(k idem.Key) (idem.Outcome, error) {
			return idem.Run(t.Context(), conn, k, func(context.Context, pgx.Tx) error { return nil })
		}
		return func() error { return dedup.Verify(t.Context(), conn) }, run
	}},
	{"stdlib", func(t *testing.T, dsn, encoding string) (func() error, func(idem.Key) (idem.Outcome, error)) {
		return overSQL(t, stdlib.OpenDB(*encoded(t, dsn, encoding)))
	}},
	{"pq", func(t *testing.T, dsn, encoding string) (func() error, func(idem.Key) (idem.Outcome, error)) {
		db := overPQ("")(t, dsn, nil)
		db.SetMaxOpenConns(1)
		if encoding != "" { // lib/pq refuses it in a connection string
			_, err := db.ExecContext(t.Context(), `SET client_encoding = '`+encoding+`'`)
			require.NoError(t, err)
		}
		return overSQL(t, db)
	}},
}

func encoded(t *testing.T, dsn, encoding string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	if encoding != "" {
		cfg.RuntimeParams["client_encoding"] = encoding
	}
	return cfg
}

func overSQL(t *testing.T, db *sql.DB) (func() error, func(idem.Key) (idem.Outcome, error)) {
	t.Helper()
	t.Cleanup(func() { _ = db.Close() })
	run := func(k idem.Key) (idem.Outcome, error) { return idemsql.Run(t.Context(), db, k, nothing) }
	return func() error { return idemsql.Verify(t.Context(), db) }, run
}

// A session that is not in UTF-8 may store one key as another than the rest do. Verify names exactly those that would.
func TestVerifyEncoding(t *testing.T) {
	t.Parallel()
	admin := pgtest.Pool(t)
	for _, tc := range []struct {
		server, client string
		two            bool // rows of one key
	}{
		{"UTF8", "", false},
		{"UTF8", "LATIN1", true},
		{"UTF8", "SQL_ASCII", false},
		{"LATIN1", "UTF8", false},
		{"LATIN1", "LATIN1", true},
		{"LATIN1", "SQL_ASCII", true},
		{"SQL_ASCII", "LATIN1", false},
		{"SQL_ASCII", "UTF8", false},
	} {
		name := admin.Config().ConnConfig.Database + "_" + strings.ToLower(tc.server)
		var there bool
		require.NoError(t, admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`,
			name).Scan(&there))
		if !there {
			_, err := admin.Exec(t.Context(),
				`CREATE DATABASE `+name+` TEMPLATE template0 ENCODING '`+tc.server+`' LC_COLLATE 'C' LC_CTYPE 'C'`)
			require.NoError(t, err)
			t.Cleanup(func() {
				_, _ = admin.Exec(context.Background(), `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`)
			})
		}
		dsn := strings.Replace(admin.Config().ConnString(), "/"+admin.Config().ConnConfig.Database, "/"+name, 1)
		utf8 := stdlib.OpenDB(*encoded(t, dsn, "UTF8"))
		require.NoError(t, idemsql.Migrate(t.Context(), utf8))
		for _, s := range sessions {
			what := tc.server + ", " + tc.client + ", " + s.name
			verify, run := s.open(t, dsn, tc.client)
			key := stripe.Key("é " + what)
			out, err := idemsql.Run(t.Context(), utf8, key, nothing)
			require.NoError(t, err, what)
			require.Equal(t, idem.Executed, out, what)
			out, err = run(key)
			require.NoError(t, err, what)
			if !tc.two {
				require.Equal(t, idem.Duplicate, out, what)
				require.NoError(t, verify(), what)
				continue
			}
			require.Equal(t, idem.Executed, out, "the harm: "+what)
			var found *dedup.VerifyError
			require.ErrorAs(t, verify(), &found, what)
			require.Len(t, found.Problems, 1, what)
			require.Equal(t, "client encoding", found.Problems[0].Kind.String(), what)
			require.Contains(t, found.Problems[0].Fix, "client_encoding", what)
		}
		require.NoError(t, utf8.Close())
	}
	// What pgx takes by itself is the database's: in one that is not UTF8, another than lib/pq's.
	dsn := strings.Replace(admin.Config().ConnString(), "/"+admin.Config().ConnConfig.Database,
		"/"+admin.Config().ConnConfig.Database+"_latin1", 1)
	for _, s := range sessions {
		verify, _ := s.open(t, dsn, "")
		require.Equal(t, s.name != "pq", verify() != nil, s.name)
	}
}
