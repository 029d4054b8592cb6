package idemtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// maxRows is the largest table that is compared row by row, and maxDiff how much of a difference a message shows.
const (
	maxRows = 200_000
	maxDiff = 8
	maxRow  = 300 // characters
)

// snapshot is the content of the compared tables: how often each row is there, as JSON of the columns that count.
type snapshot map[*userTable]map[string]int

// take reads the compared tables, in one round trip. Nobody may be writing.
func (cat *catalog) take(ctx context.Context, pool *pgxpool.Pool) (snapshot, error) {
	all := snapshot{}
	b := &pgx.Batch{}
	for _, t := range cat.tables {
		if !t.compared {
			continue
		}
		row := `'{}'`
		if list := t.comparedList(); list != "" {
			row = `to_json(r)::text FROM (SELECT ` + list
		} else {
			row += `::text FROM (SELECT 1`
		}
		counts := map[string]int{}
		all[t] = counts
		b.Queue(`SELECT ` + row + ` FROM ` + t.sql() + `) r`).Query(func(rows pgx.Rows) error {
			var text string
			n := 0
			_, err := pgx.ForEachRow(rows, []any{&text}, func() error {
				counts[text]++
				if n++; n > maxRows {
					return fmt.Errorf("the table %v has more than %d rows: too many to compare, name others in Kit.Tables", t, maxRows)
				}
				return nil
			})
			return err
		})
	}
	if err := pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read the tables: %w", err)
	}
	return all, nil
}

// tableDiff is how one table differs from what it should be.
type tableDiff struct {
	table         *userTable
	missing, more map[string]int
}

func (d tableDiff) lost() int     { return total(d.missing) }
func (d tableDiff) repeated() int { return total(d.more) }

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// diff compares got with want, by the columns that want has now: some may have been set aside since it was taken.
func diff(want, got snapshot) (all []tableDiff) {
	tables := slices.SortedFunc(maps.Keys(want), func(a, b *userTable) int { return strings.Compare(a.sql(), b.sql()) })
	for _, t := range tables {
		d := tableDiff{t, map[string]int{}, map[string]int{}}
		for row, n := range want[t] {
			if n > got[t][row] {
				d.missing[row] = n - got[t][row]
			}
		}
		for row, n := range got[t] {
			if n > want[t][row] {
				d.more[row] = n - want[t][row]
			}
		}
		if len(d.missing)+len(d.more) > 0 {
			all = append(all, d)
		}
	}
	return all
}

// summary says in a few words what happened to the rows: "2 rows of ledger repeated".
func summary(all []tableDiff) string {
	var parts []string
	for _, d := range all {
		lost, more := d.lost(), d.repeated()
		changed := min(lost, more)
		for _, p := range []struct {
			n    int
			what string
		}{{changed, "different"}, {lost - changed, "lost"}, {more - changed, "too many"}} {
			switch {
			case p.n == 0:
			case p.n == 1:
				parts = append(parts, fmt.Sprintf("1 row of %v %s", d.table, p.what))
			default:
				parts = append(parts, fmt.Sprintf("%d rows of %v %s", p.n, d.table, p.what))
			}
		}
	}
	return strings.Join(parts, ", ")
}

// lines shows the rows: "-" for those that are missing, "+" for those that are too many.
func lines(all []tableDiff) string {
	var b strings.Builder
	n := 0
	show := func(sign string, t *userTable, rows map[string]int) {
		for _, row := range slices.Sorted(maps.Keys(rows)) {
			if n++; n > maxDiff {
				continue
			}
			times := ""
			if rows[row] > 1 {
				times = fmt.Sprintf(" (%d times)", rows[row])
			}
			fmt.Fprintf(&b, "\n\t%s %v %s%s", sign, t, cut(row, maxRow), times)
		}
	}
	for _, d := range all {
		show("-", d.table, d.missing)
		show("+", d.table, d.more)
	}
	if n > maxDiff {
		fmt.Fprintf(&b, "\n\t... and %d more", n-maxDiff)
	}
	return b.String()
}

func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

// unstableColumns returns the columns whose values differ between two runs that should have been the same.
func unstableColumns(a, b snapshot) (found []*column, names []string) {
	for _, d := range diff(a, b) {
		for i := range d.table.columns {
			c := &d.table.columns[i]
			if !c.volatile && !maps.Equal(values(d.missing, c.name), values(d.more, c.name)) {
				found = append(found, c)
				names = append(names, d.table.String()+"."+c.name)
			}
		}
	}
	return found, names
}

// values counts the values of a column.
func values(rows map[string]int, column string) map[string]int {
	counts := map[string]int{}
	for row, n := range rows {
		var fields map[string]json.RawMessage
		if json.Unmarshal([]byte(row), &fields) == nil {
			counts[string(fields[column])] += n
		}
	}
	return counts
}

// without leaves out, of a snapshot that was taken earlier, the columns that have been set aside since.
func (s snapshot) without() snapshot {
	all := snapshot{}
	for t, rows := range s {
		all[t] = map[string]int{}
		for row, n := range rows {
			all[t][project(t, row)] += n
		}
	}
	return all
}

// project writes a row again with the columns that count, in the server's own form of it.
func project(t *userTable, row string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(row), &fields) != nil {
		return row
	}
	var parts []string
	for _, c := range t.columns {
		if v, ok := fields[c.name]; ok && !c.volatile {
			var name bytes.Buffer
			enc := json.NewEncoder(&name)
			enc.SetEscapeHTML(false) // PostgreSQL does not
			_ = enc.Encode(c.name)
			parts = append(parts, strings.TrimSpace(name.String())+":"+string(v))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}
