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

// Derive returns the key of another operation on the same id: a compensation, or the second step of a saga. It has the
// source of k, the operation given, and k's id, with parts behind it where there are any; it drops time and payload, for
// those were the message's. Different ids, or different parts, never give one key: where the id ends and the parts begin
// is part of it. Charge and refund of one order:
//
//	charge := payments.Key(orderID)
//	refund := charge.Derive("refund", refundID) // as idempotent as the charge
//
// The operation of k is no part of it: a charge and a shipment of one source and id have the same Derive("cancel"), and so
// one of the two would be cancelled. Name the operation for what it undoes ("cancel-charge"), or give the parts. Without
// parts there is one derived key for each source, id and operation. A fault of k stays, and a faulty part is found by
// [Key.Validate].
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

// externalVersion begins every external key. What stands behind it may change only together with it: a provider that has
// seen one form of a key must never be shown another one for the same effect.
const externalVersion = "pgonce1_"

// External returns the key for somebody else's idempotency: an Idempotency-Key header of Stripe's and the like. It is
// the same for the same source, operation and id in every version of this library, different for different ones, 51
// characters of printable ASCII (Stripe takes up to 255), and reveals nothing of the id: it is a SHA-256. Time and payload
// are not part of it. Of a key that is not valid it is empty.
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
