package upsert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

func (w writer) numbered() []int {
	is := make([]int, len(w.p.keys))
	for i := range is {
		is[i] = i
	}
	return is
}

// keyColumn returns the i-th part of the key in a row of the event, of the stored ones or of the applied ones.
func (w writer) keyColumn(alias string, i int) string {
	k := w.p.keys[i]
	if k.expr != "" {
		return fmt.Sprintf("%s.pgonce_k%d", alias, i+1)
	}
	if alias == "s" || alias == "a" {
		return at(alias, k.column)
	}
	return exact(w.l.byName[k.column], at(alias, k.column))
}

// sortKeys returns the key in the order in which rows are locked: by the columns' names, whatever order OnConflict
// has them in, and strings by their bytes, as they are sorted outside. (Where different bytes can be equal, the
// column's own order has to do.)
func (w writer) sortKeys(alias string) []string {
	is := w.lockOrder()
	keys := make([]string, len(is))
	for n, i := range is {
		keys[n] = w.keyColumn(alias, i)
		if c := w.l.byName[w.p.keys[i].column]; w.p.keys[i].expr == "" && c.isText() && !c.Fuzzy {
			keys[n] += ` COLLATE "C"`
		}
	}
	return keys
}

func (w writer) lockOrder() []int {
	is := w.numbered()
	slices.SortStableFunc(is, func(i, j int) int {
		return strings.Compare(w.p.keys[i].column+w.p.keys[i].expr, w.p.keys[j].column+w.p.keys[j].expr)
	})
	return is
}

func named(exprs []string, prefix string) string {
	parts := make([]string, len(exprs))
	for i, e := range exprs {
		parts[i] = fmt.Sprintf("%s AS %s%d", e, prefix, i+1)
	}
	return strings.Join(parts, ", ")
}

// keyText returns the key of a row as one string, never empty, in a scope where the expressions' columns stand alone.
func (w writer) keyText(alias string) string {
	if len(w.p.keys) == 1 && w.p.keys[0].expr == "" {
		return "'=' || " + w.plainText(w.p.keys[0], at(alias, w.p.keys[0].column)) + "::text"
	}
	return "ROW(" + joined(w.p.keys, ", ", func(k key) string {
		if k.expr != "" {
			return "(" + pg.AsIs(k.expr) + ")"
		}
		return w.plainText(k, at(alias, k.column))
	}) + ")::text"
}

// plainText returns expr, a value of the column k, or its binary form where its text may hide in what it differs from
// another.
func (w writer) plainText(k key, expr string) string {
	if c := w.l.byName[k.column]; c != nil && c.types.varies(c.OID) && c.OID != pgtype.ByteaOID {
		return "encode(" + c.binary(expr) + ", 'hex'::pg_catalog.text)"
	}
	return expr
}

// lockedKey is keyText of the row that conflicts. Beside excluded, an expression's columns would be ambiguous.
func (w writer) lockedKey() string {
	if w.expressions() == "" {
		return w.keyText("t")
	}
	return "(SELECT " + w.keyText("k") + " FROM (SELECT t.*) AS k)"
}
