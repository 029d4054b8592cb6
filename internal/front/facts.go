package front

import (
	"crypto/sha256"
	"time"
)

// Facts are what a key holds beside its columns. idem.Key embeds them under a name that is not exported: so they stay
// hidden from users, and every front door can read them, by [FactsOf]. Facts has no exported field and no exported
// method, for those would become the key's own. The zero value holds nothing; values can be compared with ==.
type Facts struct {
	at      int64 // microseconds since 1970, where timed
	timed   bool
	hashed  bool
	payload [sha256.Size]byte // SHA-256, where hashed
}

// facts becomes a method of whatever embeds Facts, which only this package can call.
func (f Facts) facts() Facts { return f }

// Holder is what embeds Facts.
type Holder interface{ facts() Facts }

// FactsOf returns what h embeds.
func FactsOf(h Holder) Facts { return h.facts() }

// WithTime returns f with the key's own time, cut to microseconds.
func WithTime(f Facts, t time.Time) Facts {
	f.at, f.timed = t.UnixMicro(), true
	return f
}

// WithPayload returns f with the hash of a body.
func WithPayload(f Facts, body []byte) Facts {
	f.payload, f.hashed = sha256.Sum256(body), true
	return f
}
