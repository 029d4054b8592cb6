package front

import (
	"crypto/sha256"
	"time"
)

// Facts are what a key is made of: the columns that name it, its time and its payload. idem.Key embeds them under a
// name that is not exported: so they stay hidden from users, and every front door can read them, by [FactsOf], and
// make a key of a row, by [Restore]. Facts has no exported field and no exported method, for those would become the
// key's own. The zero value holds nothing; values can be compared with ==.
type Facts struct {
	name    Name
	at      int64 // microseconds since 1970, where timed
	timed   bool
	hashed  bool
	payload [sha256.Size]byte // SHA-256, where hashed
}

// Name is what the table knows a key by.
type Name struct{ Source, Operation, ID string }

// facts and restore become methods of whatever embeds Facts, which only this package can call.
func (f Facts) facts() Facts      { return f }
func (f *Facts) restore(to Facts) { *f = to }

// Holder is what embeds Facts.
type Holder interface{ facts() Facts }

// FactsOf returns what h embeds.
func FactsOf(h Holder) Facts { return h.facts() }

// Restore gives to what embeds Facts those of a row.
func Restore(h interface{ restore(Facts) }, f Facts) { h.restore(f) }

// NameOf returns the name of the key.
func NameOf(f Facts) Name { return f.name }

// Named returns the facts of a key that has nothing but a name.
func Named(n Name) Facts { return Facts{name: n} }

// WithTime returns f with the key's own time, cut to microseconds.
func WithTime(f Facts, t time.Time) Facts { return withMicro(f, t.UnixMicro()) }

func withMicro(f Facts, at int64) Facts {
	f.at, f.timed = at, true
	return f
}

// WithPayload returns f with the hash of a body.
func WithPayload(f Facts, body []byte) Facts {
	f.payload, f.hashed = sha256.Sum256(body), true
	return f
}
