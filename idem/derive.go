package idem

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/front"
)

// derived stands between an id and the parts of a derivation. No part is empty, so that it stands nowhere else. Why not
// "/": the refund ("b", "c") of order "a" would be the refund "c" of order ("a", "b").
const derived = "//"

// Derive returns the key of another operation on the same id: a compensation, or the next step of a saga. It has k's
// source and id, the operation given, and any parts; not k's time and payload. Different ids, or different parts, never
// give one key.
//
//	charge := payments.Key(orderID)
//	refund := charge.Derive("refund", refundID) // as idempotent as the charge
//
// k's operation is not part of it. A charge and a shipment of one source and id have the same Derive("cancel"), so only
// one would be cancelled. Name what is undone ("cancel-charge"), or give the parts. A fault of k stays; [Key.Validate]
// finds a faulty part.
func (k Key) Derive(operation string, parts ...string) Key {
	if k.Validate() != nil {
		return k
	}
	s := Scope{k.Scope().Source, operation}
	d := s.key(k.ID())
	if d.fault != (KeyError{}) {
		return s.faulty(d.fault)
	}
	if len(parts) == 0 {
		return d
	}
	if f := faultOfParts(parts); f != (KeyError{}) {
		return s.faulty(f)
	}
	if len(k.ID())+len(derived)+encodedLen(parts) > dedup.MaxKeyBytes {
		return s.faulty(KeyError{"key", "is too long; use HashedKey"})
	}
	return s.key(k.ID() + derived + encode(parts))
}

// faulty returns a key that is not valid, and has no id.
func (s Scope) faulty(f KeyError) Key {
	k := s.key("")
	k.fault = f
	return k
}

// externalVersion begins every external key. What stands behind it may change only together with it: a provider that
// has seen one form of a key must never be shown another one for the same effect.
const externalVersion = "pgonce1_"

// External returns the key for another system's idempotency, such as Stripe's Idempotency-Key. It is 51 characters of
// printable ASCII (Stripe takes up to 255), a SHA-256 that reveals nothing of the id. Source, operation and id make it,
// not time and payload; where they differ, it differs. It is the same in every version of this library. Of a key that
// is not valid it is empty.
func (k Key) External() string {
	if k.Validate() != nil {
		return ""
	}
	n := front.NameOf(k.facts)
	h := sha256.New()
	for _, s := range []string{n.Source, n.Operation, n.ID} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(s)))
		h.Write(size[:])
		h.Write([]byte(s))
	}
	return externalVersion + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
