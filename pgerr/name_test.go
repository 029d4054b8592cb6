package pgerr

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]name{
		`k`:            {"", "k"},
		`s.k`:          {"s", "k"},
		`"k"`:          {"", "k"},
		`"s"."k"`:      {"s", "k"},
		`s."k.l"`:      {"s", "k.l"},
		`"s.t".k`:      {"s.t", "k"},
		`"a""b"`:       {"", `a"b`},
		`""""`:         {"", `"`},
		`a"b`:          {"", `a"b`},
		`Mixed.Case`:   {"Mixed", "Case"},
		` k `:          {"", " k "},
		`schéma.clé`:   {"schéma", "clé"},
		`".".""""`:     {".", `"`},
		`"s"."k""."""`: {"s", `k"."`},
	} {
		got, err := parseName(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{
		``, `.`, `a.`, `.a`, `a..b`, `a.b.c`, `""`, `"".a`, `a.""`, `"a`, `"a""`, `"a"b`, `"a"."b`, `"a"."b"c`, `"a"."b".`,
		`"`,
		"a\x00", "\xff", `"a" .b`, "s.k\xc3",
	} {
		_, err := parseName(in)
		require.Error(t, err, in)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	n := func(i int) string { return strings.Repeat("n", i) }
	for _, test := range []struct{ in, want string }{
		{"", ""},
		{"k", "k"},
		{n(63), n(63)},
		{n(64), n(63)},
		{n(61) + "é", n(61) + "é"},
		{n(61) + "éx", n(61) + "é"},
		{n(62) + "é", n(62)},
		{n(61) + "€", n(61)},
		{n(60) + "€x", n(60) + "€"},
		{n(60) + "😀", n(60)},
		{strings.Repeat("😀", 20), strings.Repeat("😀", 15)},
	} {
		require.Equal(t, test.want, clip(test.in), test.in)
	}
}

// A name that was quoted part by part comes back, and anything else that is accepted does so only once.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{`k`, `s.k`, `"s"."k"`, `"a""b".c`, `""`, `a.b.c`, "\xff", strings.Repeat("é", 40)} {
		f.Add(s, s)
	}
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	f.Fuzz(func(t *testing.T, a, b string) {
		ok := func(s string) bool { return s != "" && utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
		got, err := parseName(quote(a))
		if ok(a) != (err == nil) || ok(a) && got != (name{"", a}) {
			t.Fatalf("parseName(%q) = %+v, %v", quote(a), got, err)
		}
		got, err = parseName(quote(a) + "." + quote(b))
		if (ok(a) && ok(b)) != (err == nil) || err == nil && got != (name{a, b}) {
			t.Fatalf("parseName(%q.%q) = %+v, %v", quote(a), quote(b), got, err)
		}

		if got, err := parseName(a); err == nil {
			if got.constraint == "" {
				t.Fatalf("parseName(%q) found an empty name", a)
			}
			full := quote(got.constraint)
			if got.schema != "" {
				full = quote(got.schema) + "." + full
			}
			if again, err := parseName(full); err != nil || again != got {
				t.Fatalf("parseName(%q) = %+v, but %q is %+v, %v", a, got, full, again, err)
			}
		}

		cut := clip(a)
		if !strings.HasPrefix(a, cut) || len(cut) > maxName || utf8.ValidString(a) && !utf8.ValidString(cut) {
			t.Fatalf("clip(%q) = %q", a, cut)
		}
		if utf8.ValidString(a) && len(a) > maxName {
			if next := a[len(cut):]; next != "" {
				_, size := utf8.DecodeRuneInString(next)
				if len(cut)+size <= maxName {
					t.Fatalf("clip(%q) = %q leaves out a character that fits", a, cut)
				}
			}
		}
	})
}
