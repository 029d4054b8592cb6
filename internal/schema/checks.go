package schema

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// checksSQL lists the CHECKs of the table $1, and those that its partitions have beside the table's, which it locks
// for a moment for that. The text of one with an operator or a function that is not PostgreSQL's own is not told: it
// may read as the one that is meant.
var checksSQL = pg.Pin(relsSQL + `
SELECT r.oid = $1::int8::oid, r.nspname::text, r.relname::text, coalesce(pg_get_expr(r.relpartbound, 0::oid), ''),
       con.conname::text,
       CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS d
                          WHERE d.classid = 'pg_catalog.pg_constraint'::regclass AND d.objid = con.oid
                            AND d.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass))
            THEN '' ELSE pg_get_expr(con.conbin, con.conrelid) END,
       con.convalidated, coalesce((to_jsonb(con) ->> 'conenforced'::text) <> 'false', true)
  FROM rels AS r
  JOIN pg_catalog.pg_constraint AS con ON con.conrelid = r.oid
 WHERE con.contype = 'c' AND (r.oid = $1::int8::oid OR con.coninhcount::int4 = 0)
 ORDER BY 1 DESC, 2, 3, 5`)

type check struct {
	table           bool // of the table, not of a partition
	on              pg.Name
	bound           string // of the partition
	name, expr      string
	valid, enforced bool // what is not enforced refuses nothing, and proves nothing
}

func checks(ctx context.Context, conn pg.Conn, oid int64) (all []check, err error) {
	err = conn.Query(ctx, checksSQL, []any{oid}, func(scan func(...any) error) error {
		var c check
		err := scan(&c.table, &c.on.Schema, &c.on.Table, &c.bound, &c.name, &c.expr, &c.valid, &c.enforced)
		all = append(all, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's constraints: %w", err)
	}
	return all, nil
}

// checks reports the CHECKs that are not ours.
func (v *verifier) checks(all []check, t Table) {
	ours := checksOf(strings.Join(t.migrations(), "\n"))
	for _, c := range all {
		named := c.table && slices.ContainsFunc(proofs, func(p proofOf) bool { return p.name == c.name })
		if !c.enforced || named && t.Layout == Weekly || slices.Contains(ours, normal(c.expr)) || c.ofBound() {
			continue // see proofs
		}
		v.attachment("check", c.on, c.name)
	}
}

// checksOf returns the expressions of the CHECKs in a text of DDL, as [normal] makes them.
func checksOf(ddl string) (all []string) {
	for _, rest := range strings.Split(ddl, "CHECK (")[1:] {
		open := 1
		end := strings.IndexFunc(rest, func(r rune) bool {
			switch r {
			case '(':
				open++
			case ')':
				open--
			}
			return open == 0
		})
		all = append(all, normal(rest[:max(end, 0)]))
	}
	return all
}

var boundOfWeek = regexp.MustCompile(`^FOR VALUES FROM \(('[^']+')\) TO \(('[^']+')\)$`)

// ofBound reports whether the CHECK says what the bound of the partition says. DETACH ... CONCURRENTLY leaves one
// behind, and one that was made by hand spares ATTACH its scan.
func (c check) ofBound() bool {
	m := boundOfWeek.FindStringSubmatch(c.bound)
	if m == nil {
		return false
	}
	want := normal("bucket >= " + m[1] + "::date AND bucket < " + m[2] + "::date")
	return strings.TrimPrefix(normal(c.expr), normal("bucket IS NOT NULL AND ")) == want
}

// proofs are the CHECKs that make the bucket a function of the key; each by its name in the DDL.
var proofs = []proofOf{
	{"bucket_of_event_time", "nothing keeps the bucket of a key from changing between retries, and the key is " +
		"unique in a bucket only"},
	{
		"event_time_of_key", "nothing keeps the time of a UUIDv7 or ULID key from changing between retries, " +
			"and with it the bucket in which the key is unique",
	},
}

type proofOf struct{ name, without string }

// proof returns the CHECK from the DDL, without its name.
func proof(name string) string {
	_, check, _ := strings.Cut(pg.Pin(weekly0001), "CONSTRAINT "+name+" ")
	for _, end := range []string{",\n  CONSTRAINT", "\n) PARTITION BY"} {
		check, _, _ = strings.Cut(check, end)
	}
	return check
}

var insignificant = regexp.MustCompile(`--.*|::(pg_catalog\.)?(text|numeric)|OPERATOR\(|pg_catalog\.|[\s()]+`)

// normal strips an expression of what a server adds when it prints it, so that the text of the DDL and the catalog's
// can be compared. Two expressions that differ only in parentheses or quotes would be taken for equal; nobody writes
// that by accident.
func normal(expr string) string {
	return strings.ToLower(insignificant.ReplaceAllString(strings.ReplaceAll(expr, `"`, ""), ""))
}

// proofs looks for the CHECKs that make the bucket a function of the key.
func (v *verifier) proofs(all []check) {
	for _, p := range proofs {
		want := proof(p.name)
		found, drop := check{}, ""
		for _, c := range all {
			if c.table && c.enforced && "check"+normal(c.expr) == normal(want) && (c.valid || found.name == "") {
				found = c
			}
			if c.table && c.name == p.name {
				drop = "DROP CONSTRAINT " + pg.Quote(c.name) + ", "
			}
		}
		switch {
		case found.name == "":
			v.alter(noCheck, "the CHECK "+p.name+" is missing, or "+
				"another one: "+p.without, "%sADD CONSTRAINT %s %s", drop, pg.Quote(p.name), want)
		case !found.valid:
			v.alter(unproven, "the CHECK "+pg.Quote(found.name)+" is not validated: "+p.without, "VALIDATE CONSTRAINT %s",
				pg.Quote(found.name))
		}
	}
}
