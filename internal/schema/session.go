package schema

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// What a session, or its server, may lack.
const (
	asyncCommit   = "asynchronous commit"
	otherEncoding = "client encoding"
	notDurable    = "not durable"
)

// sessionSQL reads settings. pgonce.throwaway is set on servers for tests, whose data nobody will miss.
var sessionSQL = pg.Pin(`
SELECT pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('client_encoding'),
       pg_catalog.current_setting('server_encoding'), pg_catalog.current_setting('fsync'),
       pg_catalog.current_setting('full_page_writes'), coalesce(pg_catalog.current_setting('pgonce.throwaway', true), '')`)

type session struct{ commit, client, server, fsync, pages, throwaway string }

// Session returns what keeps the settings of the current session from being enough for the promise, whatever the table.
func Session(ctx context.Context, conn pg.Conn) ([]Problem, error) {
	var s session
	dest := []any{&s.commit, &s.client, &s.server, &s.fsync, &s.pages, &s.throwaway}
	if err := conn.Send(ctx, &pg.Stmt{SQL: sessionSQL, Dest: dest}); err != nil {
		return nil, err
	}
	return s.problems(), nil
}

func (s session) problems() (all []Problem) {
	if s.commit == "off" {
		all = append(all, Problem{
			Kind: asyncCommit, Fix: "SET synchronous_commit = on;",
			Message: "synchronous_commit is off: a crash of the server loses the last transactions that it said were committed, " +
				"so that a message which was acknowledged meanwhile has no effect, and a reserved call may be made twice",
		})
	}
	if s.recodes() {
		all = append(all, Problem{
			Kind: otherEncoding, Fix: "SET client_encoding = 'UTF8'; -- better: in every program's connection string, " +
				"client_encoding=UTF8",
			Message: fmt.Sprintf("client_encoding is %s, in a database of encoding %s, and keys are sent in UTF-8: one with a "+
				"letter beyond "+
				"ASCII is stored as another key than by a session whose client_encoding is UTF8, and its effect happens twice",
				s.client, s.server),
		})
	}
	if s.throwaway == "on" {
		return all
	}
	for _, o := range []struct{ name, value string }{{"fsync", s.fsync}, {"full_page_writes", s.pages}} {
		if o.value == "off" {
			all = append(all, Problem{
				Kind: notDurable, Fix: "ALTER SYSTEM SET " + o.name + " = on; -- then SELECT pg_reload_conf()",
				Message: o.name + " is off: a crash of the machine can lose or damage what was committed, keys and effects, " +
					"and their index (a server for tests says that it is one: pgonce.throwaway = on)",
			})
		}
	}
	return all
}

// recodes reports whether the session would store a string of Go's as other bytes than a session in UTF8 does. Where
// one of the two encodings is SQL_ASCII, the server takes the bytes as they come.
func (s session) recodes() bool {
	switch {
	case s.client == "UTF8" || s.server == "SQL_ASCII":
		return false
	case s.client == "SQL_ASCII":
		return s.server != "UTF8"
	}
	return true
}
