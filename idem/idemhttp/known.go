package idemhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/maphash"
	"sync/atomic"

	"github.com/pgonce/pgonce/idem"
)

// known remembers keys that this process has seen committed. It is a guess, and decides nothing: a retry of such a key
// reads the row before it claims anything, which is one statement in place of a transaction. A key that is not known
// costs nothing, and one that is forgotten, or known to another process, is claimed as ever.
type known struct {
	seed  maphash.Seed
	slots [1 << 13]atomic.Uint64
}

func newKnown() *known { return &known{seed: maphash.MakeSeed()} }

// slot returns the place of a key, and what stands there where the key is known.
func (k *known) slot(key idem.Key) (*atomic.Uint64, uint64) {
	h := maphash.Comparable(k.seed, key)
	return &k.slots[h%uint64(len(k.slots))], h | 1 // 0 is an empty slot
}

func (k *known) add(key idem.Key) {
	slot, mark := k.slot(key)
	slot.Store(mark)
}

func (k *known) has(key idem.Key) bool {
	slot, mark := k.slot(key)
	return slot.Load() == mark
}

// kept returns what is stored with a key that is known, where the row says beyond doubt that this request is done.
// Whatever else it finds, or fails to find, the claim says better.
func (m *middleware) kept(ctx context.Context, p *payload) (s stored, ok bool) {
	if m.door.look == nil || !m.known.has(p.key) {
		return stored{}, false
	}
	r, err := m.door.look(ctx, p.key)
	if err != nil || r.State != idem.Done || r.Value == nil || !bytes.Equal(r.PayloadHash, p.hash[:]) {
		return stored{}, false
	}
	return s, json.Unmarshal(r.Value, &s) == nil
}
