package pgtest

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// A database that a test leaves behind is emptied and given to the next test: that costs a quarter of dropping it and
// making another one, whose first session also has to build its catalog cache. What cannot be emptied for sure is
// dropped. It gets a new name on the way, so that whatever a test left running cannot reach it any more.

// reset makes a database as empty as a copy of template0, or fails.
const reset = `
DO $$
DECLARE
	s text;
BEGIN
	IF EXISTS (SELECT FROM pg_event_trigger) OR EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT FROM pg_foreign_data_wrapper)
		OR EXISTS (SELECT FROM pg_largeobject_metadata) OR EXISTS (SELECT FROM pg_default_acl)
		OR EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database())
		OR EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
		OR EXISTS (SELECT FROM pg_database WHERE datname = current_database() AND (datacl IS NOT NULL OR datconnlimit <> -1))
		OR EXISTS (SELECT FROM pg_replication_slots WHERE database = current_database())
		OR EXISTS (SELECT FROM pg_cast WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_language WHERE oid >= 16384)
		OR EXISTS (SELECT FROM pg_am WHERE oid >= 16384)
	THEN
		RAISE EXCEPTION 'the database holds what belongs to no schema';
	END IF;
	FOR s IN SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
		EXECUTE 'DROP SCHEMA ' || s || ' CASCADE';
	END LOOP;
	IF EXISTS (SELECT FROM pg_class WHERE oid >= 16384 AND relnamespace = 'pg_catalog'::regnamespace)
		OR EXISTS (SELECT FROM pg_proc WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_type WHERE oid >= 16384)
		OR EXISTS (SELECT FROM pg_extension WHERE extname <> 'plpgsql')
	THEN
		RAISE EXCEPTION 'something is left';
	END IF;
	IF current_setting('server_version_num')::int >= 150000 THEN
		CREATE SCHEMA public AUTHORIZATION pg_database_owner;
		GRANT USAGE ON SCHEMA public TO PUBLIC;
	ELSE
		CREATE SCHEMA public;
		GRANT ALL ON SCHEMA public TO PUBLIC;
	END IF;
END $$`

// disconnect ends the other sessions of the current database, and says how many there were.
const disconnect = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`

// recycle empties a test's database and keeps it for another test.
func (s *server) recycle(ctx context.Context, name string) error {
	cfg := s.admin.Config().ConnConfig.Copy()
	cfg.Database = name
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	for {
		var others int
		if err := conn.QueryRow(ctx, disconnect).Scan(&others); err != nil {
			return errors.Join(err, conn.Close(ctx))
		}
		if others == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), conn.Close(ctx))
		case <-time.After(time.Millisecond): // until they have gone
		}
	}
	_, err = conn.Exec(ctx, reset)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	s.freeMu.Lock()
	defer s.freeMu.Unlock()
	s.free = append(s.free, name)
	return nil
}

// recycled returns an empty database that is free, by its new name, or "".
func (s *server) recycled(ctx context.Context) string {
	for old := s.takeFree(); old != ""; old = s.takeFree() {
		name := newName()
		err := s.waitUntilUnused(ctx, old)
		if err == nil {
			_, err = s.admin.Exec(ctx, `ALTER DATABASE `+pgx.Identifier{old}.Sanitize()+` RENAME TO `+
				pgx.Identifier{name}.Sanitize())
		}
		if err == nil {
			return name
		}
		// Somebody has come back to it.
		_ = s.dropDatabase(ctx, old)
	}
	return ""
}

// waitUntilUnused waits until a database has no session. The server would do so too before it renames it, but in
// steps of 100 ms.
func (s *server) waitUntilUnused(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		var used bool
		err := s.admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1::text)`,
			name).Scan(&used)
		if err != nil || !used {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// takeFree returns a free database, or "".
func (s *server) takeFree() string {
	s.freeMu.Lock()
	defer s.freeMu.Unlock()
	if len(s.free) == 0 {
		return ""
	}
	name := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return name
}
