package idemtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// Collide audits the functions in Keys, on the Deliveries. It fails unless
//
//   - every key is valid: source, operation and id are there, and none is too long;
//   - no two deliveries, and no two functions, make the same key. Give deliveries that differ in one part only (the
//     tenant, the type), and some that could be confused: tenant 1 with id 23, and tenant 12 with id 3;
//   - a key, with its time (OccurredAt) and payload, is the same whenever it is made: again at once, at another time,
//     in another process. If t is a *testing.T, the other time is the year 2000, in a bubble of testing/synctest: that
//     finds the day or the hour in a key. Otherwise it is a second later.
//
// It does not use DSN, Handler and Setup.
func (k Kit[D]) Collide(t TB) {
	t.Helper()
	if k.Handler == nil {
		k.Handler = func(*DB) func(context.Context, D) error { return nil }
	}
	if k.DSN == "" {
		k.DSN = "-"
	}
	run(t, k, part[D]{"Collide", (*lab[D]).collide})
}

// maker is one call of a key function.
type maker[D any] struct {
	function, delivery int
}

func (m maker[D]) String() string {
	return fmt.Sprintf("Keys[%d] of delivery %d", m.function, m.delivery+1)
}

// keys makes all keys, in an order that is the same in every process.
func (l *lab[D]) keys() (keys []idem.Key, by []maker[D]) {
	for f, makeKey := range l.Keys {
		for i, d := range l.Deliveries {
			keys = append(keys, makeKey(d))
			by = append(by, maker[D]{f, i})
		}
	}
	return keys, by
}

// keyText writes all keys in full: their times and hashes too.
func (l *lab[D]) keyText() string {
	keys, _ := l.keys()
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%#v\n", k) // every field
	}
	return b.String()
}

func (l *lab[D]) collide() error {
	if len(l.Keys) == 0 {
		return &finding{sentence: "Kit.Keys is empty: which functions make the keys?"}
	}
	keys, by := l.keys()
	type name struct{ source, operation, id string }
	seen := map[name]int{}
	for i, k := range keys {
		if err := k.Validate(); err != nil {
			return &finding{sentence: fmt.Sprintf("%v is not valid: %v", by[i], err)}
		}
		n := name{k.Scope().Source, k.Scope().Operation, k.ID()}
		if j, ok := seen[n]; ok {
			return &finding{sentence: fmt.Sprintf("%v and %v are one key, %v: the second of them would never be done; "+
				"give each part of the id (tenant, type, id) as an argument of its own, and each operation its own Scope", by[j],
				by[i], k)}
		}
		seen[n] = i
	}
	for range 20 { // for what depends on the order of a map
		again, _ := l.keys()
		if f := l.sameKeys(keys, again, by, "made again at once"); f != nil {
			return f
		}
	}
	later, _ := l.atAnotherTime()
	if f := l.sameKeys(keys, later, by, "made at another time"); f != nil {
		return f
	}
	want := l.keyText()
	got, err := l.runChild(childSpec{})
	if err != nil {
		return err
	}
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range keys {
		if i >= len(gots) || wants[i] != gots[i] {
			return &finding{sentence: fmt.Sprintf("%v is another key when another process makes it: %s", by[i], keyOf)}
		}
	}
	return nil
}

// atAnotherTime makes the keys at a time that has nothing in common with now.
func (l *lab[D]) atAnotherTime() (keys []idem.Key, by []maker[D]) {
	t, ok := l.t.(*testing.T)
	if !ok {
		time.Sleep(1100 * time.Millisecond) // clocks are often read in seconds
		return l.keys()
	}
	synctest.Test(t, func(*testing.T) { keys, by = l.keys() })
	return keys, by
}

// sameKeys compares keys that should be the same.
func (l *lab[D]) sameKeys(want, got []idem.Key, by []maker[D], when string) error {
	for i := range want {
		switch {
		case want[i] == got[i]:
		case want[i].Scope() != got[i].Scope() || want[i].ID() != got[i].ID():
			return &finding{sentence: fmt.Sprintf("%v is %v, and %s it is %v: %s", by[i], want[i], when, got[i], keyOf)}
		default:
			return &finding{sentence: fmt.Sprintf("%v has another time or payload (OccurredAt, WithPayload) %s: "+
				"both must come from the delivery, and be the same on every retry", by[i], when)}
		}
	}
	return nil
}
