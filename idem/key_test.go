package idem_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

var stripe = idem.Scope{Source: "stripe", Operation: "activate"}

func TestKeyStoredForm(t *testing.T) {
	for _, c := range []struct {
		parts []string
		id    string
	}{
		{[]string{"evt_1"}, "evt_1"},
		{[]string{"a", "b"}, "a/b"},
		{[]string{"a/b"}, "a%2Fb"},
		{[]string{"a%2Fb"}, "a%252Fb"},
		{[]string{"%"}, "%25"},
		{[]string{" a ", "b "}, " a /b "},
		{[]string{"/", "/"}, "%2F/%2F"},
		{[]string{"ü", "日本"}, "ü/日本"},
		{[]string{"%sha256:x"}, "%25sha256:x"},
	} {
		require.Equal(t, c.id, stripe.Key(c.parts...).ID())
		require.NoError(t, stripe.Key(c.parts...).Validate())
	}
	require.Equal(t, "%sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		stripe.HashedKey("abc").ID())
	require.Equal(t, "stripe/activate/a/b", stripe.Key("a", "b").String())
	require.Equal(t, stripe, stripe.Key("a").Scope())
}

func TestKeyIsComparable(t *testing.T) {
	a, same, b := stripe.Key("a"), stripe.Key("a"), stripe.Key("b")
	require.True(t, a == same)
	require.False(t, a == b)
	require.False(t, stripe.Key("a") == stripe.Key("a").WithPayload(nil))
	at := time.Date(2026, 11, 30, 12, 0, 0, 1000, time.UTC)
	require.True(t, stripe.Key("a").OccurredAt(at) == stripe.Key("a").OccurredAt(at.In(time.FixedZone("x", 3600))))
	require.Len(t, map[idem.Key]bool{stripe.Key("a"): true, stripe.Key("a", "b"): true, stripe.Key("a/b"): true}, 3)
}

func TestKeyErrors(t *testing.T) {
	const secret = "secret\x00value"
	long := strings.Repeat("x", dedup.MaxKeyBytes)
	for _, c := range []struct {
		name          string
		key           idem.Key
		role, problem string
	}{
		{"zero", idem.Key{}, "key", "is the zero Key; make keys with Scope.Key"},
		{"zero with time", idem.Key{}.OccurredAt(time.Now()), "key", "is the zero Key; make keys with Scope.Key"},
		{"no parts", stripe.Key(), "key", "is empty"},
		{"no parts, hashed", stripe.HashedKey(), "key", "is empty"},
		{"empty part", stripe.Key("a", ""), "key", "has an empty part"},
		{"empty part, hashed", stripe.HashedKey("a", ""), "key", "has an empty part"},
		{"blank", stripe.Key(" \t\r\n"), "key", "has a blank part"},
		{"blank part", stripe.Key("a", "\u00a0"), "key", "has a blank part"},
		{"blank part, hashed", stripe.HashedKey("a", "\u2003\u3000\u0085"), "key", "has a blank part"},
		{"derived, blank part", stripe.Key("a").Derive("o", " "), "key", "has a blank part"},
		{"derived, blank operation", stripe.Key("a").Derive(" ", "a"), "operation", "is blank"},
		{"blank source", idem.Scope{Source: "\u00a0", Operation: "o"}.Key("a"), "source", "is blank"},
		{"blank operation", idem.Scope{Source: "s", Operation: " "}.HashedKey("a"), "operation", "is blank"},
		{"NUL", stripe.Key(secret), "key", "holds a NUL byte"},
		{"not UTF-8", stripe.Key("\xc3("), "key", "is not UTF-8"},
		{"too long", stripe.Key(long + "x"), "key", "is too long; use HashedKey"},
		{"too long by its escapes", stripe.Key(long[1:] + "/"), "key", "is too long; use HashedKey"},
		{"too long in parts", stripe.Key(long[1:], "x"), "key", "is too long; use HashedKey"},
		{"source", idem.Scope{Source: secret, Operation: "o"}.Key("a"), "source", "holds a NUL byte"},
		{"operation", idem.Scope{Source: "s"}.Key("a"), "operation", "is empty"},
		{
			"operation, hashed", idem.Scope{Source: "s", Operation: strings.Repeat("o", dedup.MaxScopeBytes+1)}.HashedKey("a"),
			"operation", "is too long",
		},
		{"zero time", stripe.Key("a").OccurredAt(time.Time{}), "time", "is zero or outside of the years 1 to 9999"},
		{
			"far time", stripe.Key("a").OccurredAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "time",
			"is zero or outside of the years 1 to 9999",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got *idem.KeyError
			require.ErrorAs(t, c.key.Validate(), &got)
			require.Equal(t, idem.KeyError{Role: c.role, Problem: c.problem}, *got)
			require.NotContains(t, got.Error(), "secret")
			require.NotContains(t, got.Error(), "xxx")
			require.False(t, idem.Retryable(got))
		})
	}
	require.NoError(t, stripe.Key(long).Validate())
	require.NoError(t, stripe.Key(long[2:], "x").Validate())
	require.NoError(t, stripe.HashedKey(long, long, secret, "\xff").Validate())
}

// FuzzKeysDiffer: two different (scope, parts) never share one stored form, hashed or not.
func FuzzKeysDiffer(f *testing.F) {
	f.Add("s", "o", "a/b", "", "s", "o", "a", "b", false, false)
	f.Add("s", "o", "a", "b", "s", "o", "a%2Fb", "", false, false)
	f.Add("s", "o", "%sha256:"+strings.Repeat("0", 64), "", "s", "o", "a", "", false, true)
	f.Add("s/o", "p", "a", "", "s", "o/p", "a", "", false, false)
	f.Add("s", "o", "%", "25", "s", "o", "%25", "", false, false)
	f.Add("s", "o", "a/b", "", "s", "o", "a%2Fb", "", false, false)
	f.Fuzz(func(t *testing.T, s1, o1, a1, b1, s2, o2, a2, b2 string, h1, h2 bool) {
		key := func(s, o, a, b string, hashed bool) idem.Key {
			parts := []string{a, b}
			if b == "" {
				parts = parts[:1]
			}
			if hashed {
				return idem.Scope{Source: s, Operation: o}.HashedKey(parts...)
			}
			return idem.Scope{Source: s, Operation: o}.Key(parts...)
		}
		k1, k2 := key(s1, o1, a1, b1, h1), key(s2, o2, a2, b2, h2)
		if k1.Validate() != nil || k2.Validate() != nil {
			return
		}
		for _, k := range []idem.Key{k1, k2} {
			if n := len(k.ID()); n == 0 || n > dedup.MaxKeyBytes || !utf8.ValidString(k.ID()) || strings.Contains(k.ID(),
				"\x00") {
				t.Fatalf("a valid key has a stored form that cannot be stored: %q", k.ID())
			}
		}
		same := s1 == s2 && o1 == o2 && a1 == a2 && b1 == b2 && h1 == h2
		stored := k1.Scope() == k2.Scope() && k1.ID() == k2.ID()
		if same != stored || same != (k1 == k2) || same != (k1.String() == k2.String()) {
			t.Fatalf("same %v, stored alike %v, equal %v: %q %q", same, stored, k1 == k2, k1, k2)
		}
	})
}

func TestKeyAllocations(t *testing.T) {
	id := strings.Repeat("e", 30)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = stripe.Key(id).Validate() }))
}
