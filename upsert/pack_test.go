package upsert

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// Rows are said to have distinct keys only where the server cannot take two of them for one, and sorts them as they
// are sorted here.
func TestDistinct(t *testing.T) {
	t.Parallel()
	type row struct {
		K string `db:"k"`
	}
	p := Into[row]("keys").OnConflict("k").FirstWins().MustBuild().p
	const upper, lower = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
	for name, tt := range map[string]struct {
		c        column
		encoding string
		keys     []string
		want     bool
	}{
		"text":                         {column{OID: pgtype.TextOID}, "UTF8", []string{"a", "A", "é", ""}, true},
		"text twice":                   {column{OID: pgtype.TextOID}, "UTF8", []string{"a", "b", "a"}, false},
		"text of a fuzzy collation":    {column{OID: pgtype.TextOID, Fuzzy: true}, "UTF8", []string{"a", "b"}, false},
		"LATIN1, as Unicode":           {column{OID: pgtype.TextOID}, "LATIN1", []string{"a", "é"}, true},
		"another encoding":             {column{OID: pgtype.VarcharOID}, "LATIN9", []string{"a", "€"}, false},
		"another encoding, ASCII":      {column{OID: pgtype.VarcharOID}, "EUC_JP", []string{"a", "b"}, true},
		"blanks":                       {column{OID: pgtype.BPCharOID}, "UTF8", []string{"a", "a "}, false},
		"an extension's type":          {column{OID: 99_999}, "UTF8", []string{"a", "b"}, false},
		"numbers":                      {column{OID: pgtype.Int8OID}, "UTF8", []string{"10", "9", "-1"}, true},
		"numbers, written differently": {column{OID: pgtype.Int8OID}, "UTF8", []string{"1", "2", "01"}, false},
		"not plain":                    {column{OID: pgtype.Int4OID}, "UTF8", []string{"1", " 1"}, false},
		"hexadecimal":                  {column{OID: pgtype.Int4OID}, "UTF8", []string{"1", "0x1"}, false},
		"uuids":                        {column{OID: pgtype.UUIDOID}, "UTF8", []string{lower, "b" + lower[1:]}, true},
		"uuids, written differently":   {column{OID: pgtype.UUIDOID}, "UTF8", []string{lower, upper}, false},
		"uuids without dashes": {
			column{OID: pgtype.UUIDOID},
			"UTF8",
			[]string{lower, "a0eebc999c0b4ef8bb6d6bb9bd380a11"},
			false,
		},
		"times, which may be written so": {
			column{OID: pgtype.TimestamptzOID},
			"UTF8",
			[]string{"2026-03-01 12:00:00+00", "2026-03-01 12:00:00.5+00"},
			false,
		},
	} {
		tt.c.Name, tt.c.Type = "k", "pg_catalog.text"
		l := &layout{Encoding: tt.encoding, byName: map[string]*column{"k": &tt.c}}
		s := store{columns: 1}
		for i, k := range tt.keys {
			s.add([]value{{text: k}}, i)
		}
		o := newOrder(p, l)
		var rows []packed
		for _, i := range s.sorted(o) {
			rows = append(rows, s.row(i))
		}
		require.Equal(t, tt.want, o.distinct(rows), name)
		if tt.want && len(rows) > 1 {
			slices.Reverse(rows)
			require.False(t, o.distinct(rows), "%s: rows that are not sorted may hide a key", name)
		}
	}
}
