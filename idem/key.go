package idem

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/front"
)

// Scope says where keys come from and what is done with them: Source made the id ("stripe", "orders-topic"), Operation
// is the effect ("activate-subscription"). Both are columns of the key: one id of two sources, or of two operations, is
// two keys. A Scope is usually a package variable.
//
// Each is 1 to 255 bytes of UTF-8, without NUL, and not only white space; [Key.Validate] tells.
type Scope struct{ Source, Operation string }

// Key returns the key of an id in this scope. Give an id of several parts (tenant, type, id) as several arguments:
// different parts never make the same key, Key("a/b") is not Key("a", "b"). It sends no SQL and returns no error.
// [Key.Validate] reports a faulty part, and so does every function that takes the key, before any SQL.
//
// The stored form is readable: the parts joined by "/", with "%" and "/" inside a part written as %25 and %2F. It has
// at most 1,024 bytes; [Scope.HashedKey] is for longer ones. Parts must be UTF-8 without NUL, and not empty or only
// white space.
func (s Scope) Key(parts ...string) Key {
	k := s.key("")
	if k.fault != (KeyError{}) {
		return k
	}
	if k.fault = faultOfParts(parts); k.fault != (KeyError{}) {
		return k
	}
	if size := encodedLen(parts); size > dedup.MaxKeyBytes {
		k.fault = KeyError{"key", "is too long; use HashedKey"}
		return k
	}
	return s.key(encode(parts))
}

// HashedKey returns the key of an id that is secret, or too long to store. The stored form is the SHA-256 of what
// [Scope.Key] would store, of any length; what can be guessed can be found from it. It never equals a key that Key
// makes. It also suits jobs named by (operation, entity, version). Parts may hold any bytes, but must not be empty or
// blank.
func (s Scope) HashedKey(parts ...string) Key {
	k := s.key("")
	if k.fault != (KeyError{}) {
		return k
	}
	if k.fault = faultOfCount(parts); k.fault != (KeyError{}) {
		return k
	}
	sum := sha256.Sum256([]byte(encode(parts)))
	return s.key(hashedPrefix + hex.EncodeToString(sum[:]))
}

// hashedPrefix cannot begin what encode returns: there, a "%" is always followed by 25 or 2F.
const hashedPrefix = "%sha256:"

// Key names one effect of one message. Only a [Scope] makes one. It is a small value, comparable with == (time and
// payload included) and safe to copy. The zero Key is not valid.
//
// Every session must have client_encoding UTF8, which lib/pq sets and pgx leaves to the server. In LATIN1 a part that
// is not ASCII makes another key, and the effect happens twice. [dedup.Verify] finds it. A database whose encoding
// lacks a letter refuses the key.
type Key struct {
	facts
	fault KeyError
}

// facts are embedded, and not a field, so that the other front doors can read them, and make keys of rows.
type facts = front.Facts

// key returns the key of a stored form, and nothing but that and a fault of the scope's.
func (s Scope) key(id string) Key {
	return Key{front.Named(front.Name{Source: s.Source, Operation: s.Operation, ID: id}), s.fault()}
}

// OccurredAt returns the key with the event's own time, as the sender states it. It must be the same on every retry:
// never the time of receipt, never a header that each attempt renews. A retry that comes after its row was purged then
// gets [ErrExpired], and is not taken for a new message; a time too far ahead gets [ErrFuture]. Times are kept in
// microseconds.
func (k Key) OccurredAt(t time.Time) Key {
	if k.fault != (KeyError{}) {
		return k
	}
	if year := t.UTC().Year(); t.IsZero() || year < 1 || year > 9999 {
		k.fault = KeyError{"time", "is zero or outside of the years 1 to 9999"}
		return k
	}
	k.facts = front.WithTime(k.facts, t)
	return k
}

// WithPayload returns the key with the SHA-256 of the message's body. A later call with the same key and another body
// gets [ErrPayloadMismatch] instead of Duplicate. Give it the bytes as they came: a body decoded and encoded again may
// differ. A call, or a row, without a payload is not compared.
func (k Key) WithPayload(b []byte) Key {
	k.facts = front.WithPayload(k.facts, b)
	return k
}

// Scope returns the scope that made the key.
func (k Key) Scope() Scope {
	n := front.NameOf(k.facts)
	return Scope{n.Source, n.Operation}
}

// ID returns the stored form of the parts, without the scope. It is empty if the key is not valid.
func (k Key) ID() string { return front.NameOf(k.facts).ID }

// String returns source, operation and id joined by "/", with "%" and "/" in source and operation escaped as in
// [Scope.Key]. It holds the id: do not log it where ids are secret.
func (k Key) String() string {
	n := front.NameOf(k.facts)
	return escape(n.Source) + "/" + escape(n.Operation) + "/" + n.ID
}

// Validate returns a *[KeyError] if the key cannot be stored, else nil. Every function that takes a key calls it before
// any SQL.
func (k Key) Validate() error {
	switch {
	case k.fault != (KeyError{}):
		fault := k.fault
		return &fault
	case k.ID() == "":
		return &KeyError{"key", "is the zero Key; make keys with Scope.Key"}
	}
	return nil
}

// KeyError says what is wrong with a key. It names the part, and never holds its content.
type KeyError struct {
	Role    string // "source", "operation", "key" or "time"
	Problem string // "is empty", "is blank", "is too long ...", "holds a NUL byte", "is not UTF-8"
}

// Error returns the role and the problem.
func (e *KeyError) Error() string { return "idem: the " + e.Role + " " + e.Problem }

func (s Scope) fault() KeyError {
	if f := faultOf("source", s.Source); f != (KeyError{}) {
		return f
	}
	return faultOf("operation", s.Operation)
}

func faultOf(role, s string) KeyError {
	if f := faultOfText(role, s); f != (KeyError{}) {
		return f
	}
	if len(s) > dedup.MaxScopeBytes {
		return KeyError{role, "is too long"}
	}
	return KeyError{}
}

func faultOfText(role, s string) KeyError {
	switch {
	case s == "":
		return KeyError{role, "is empty"}
	case blank(s):
		return KeyError{role, "is blank"}
	case strings.IndexByte(s, 0) >= 0:
		return KeyError{role, "holds a NUL byte"}
	case !utf8.ValidString(s):
		return KeyError{role, "is not UTF-8"}
	}
	return KeyError{}
}

func faultOfCount(parts []string) KeyError {
	if len(parts) == 0 {
		return KeyError{"key", "is empty"}
	}
	for _, p := range parts {
		switch {
		case p == "":
			return KeyError{"key", "has an empty part"}
		case blank(p):
			return KeyError{"key", "has a blank part"}
		}
	}
	return KeyError{}
}

// blank reports whether s is white space alone, as a field that was not filled in. The first such message would make a
// duplicate of every other one.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

func faultOfParts(parts []string) KeyError {
	if f := faultOfCount(parts); f != (KeyError{}) {
		return f
	}
	for _, p := range parts {
		if f := faultOfText("key", p); f != (KeyError{}) {
			return f
		}
	}
	return KeyError{}
}

// encode joins parts so that different parts never give one string: a "/" in the result always stands between two
// parts, for those inside are escaped, and so is the escape.
func encode(parts []string) string {
	if len(parts) == 1 {
		return escape(parts[0])
	}
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape(p)
	}
	return strings.Join(escaped, "/")
}

func encodedLen(parts []string) int {
	n := len(parts) - 1
	for _, p := range parts {
		n += len(p) + 2*(strings.Count(p, "%")+strings.Count(p, "/"))
	}
	return n
}

func escape(s string) string {
	if !strings.ContainsAny(s, "%/") {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "%", "%25"), "/", "%2F")
}
