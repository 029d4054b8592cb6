package idemtest_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
)

// order is an event with an id of two parts.
type order struct{ Tenant, ID string }

func TestCollide(t *testing.T) {
	t.Parallel()
	scope := idem.Scope{Source: "orders", Operation: "ship"}
	other := idem.Scope{Source: "orders", Operation: "bill"}
	sound := func(o order) idem.Key { return scope.Key(o.Tenant, o.ID) }
	for _, c := range []struct {
		name string
		keys []func(order) idem.Key
		want string // "": nothing to find
	}{
		{"sound", []func(order) idem.Key{sound, func(o order) idem.Key { return other.Key(o.Tenant, o.ID) }}, ""},
		{"hashed", []func(order) idem.Key{func(o order) idem.Key { return scope.HashedKey(o.Tenant, o.ID) }}, ""},
		{
			"one function twice",
			[]func(order) idem.Key{sound, sound},
			"Keys[0] of delivery 1 and Keys[1] of delivery 1 are one key",
		},
		{
			"parts joined",
			[]func(order) idem.Key{func(o order) idem.Key { return scope.Key(o.Tenant + o.ID) }},
			"Keys[0] of delivery 1 and Keys[0] of delivery 2 are one key",
		},
		{
			"one part left out",
			[]func(order) idem.Key{func(o order) idem.Key { return scope.Key(o.Tenant[:1]) }},
			"are one key",
		},
		{"time", []func(order) idem.Key{func(o order) idem.Key {
			return scope.Key(o.Tenant, o.ID,
				time.Now().Format(time.RFC3339Nano))
		}}, "made again at once it is"},
		{"random", []func(order) idem.Key{func(o order) idem.Key {
			return scope.Key(o.Tenant, o.ID,
				fmt.Sprint(rand.Int()))
		}}, "time or random part in the key"},
		{"process", []func(order) idem.Key{func(o order) idem.Key {
			return scope.Key(o.Tenant, o.ID,
				fmt.Sprint(os.Getpid()))
		}}, "another key when another process makes it"},
		{
			"empty",
			[]func(order) idem.Key{func(o order) idem.Key { return idem.Scope{Operation: "ship"}.Key(o.ID) }},
			"the source is empty",
		},
		{
			"long",
			[]func(order) idem.Key{func(o order) idem.Key { return scope.Key(o.ID, strings.Repeat("x", 2000)) }},
			"is too long",
		},
		{"none", nil, "Kit.Keys is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := idemtest.Kit[order]{Deliveries: []order{{"1", "23"}, {"12", "3"}}, Keys: c.keys}
			if c.want == "" {
				k.Collide(t)
				return
			}
			message := failure(t, func(tb idemtest.TB) { k.Collide(tb) })
			if !idemtest.Child() {
				require.Contains(t, message, c.want)
			}
		})
	}
}

// offenderEnv has TestCollideOffender fail, in a process of its own.
const offenderEnv = "IDEMTEST_OFFENDER"

// Keys that only another day tells apart are found where the test is a *testing.T, and what it prints can be read in
// another process only.
func TestCollideAtAnotherTime(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"day":  "Keys[0] of delivery 1 is orders/ship/1/",
		"hour": "another time or payload (OccurredAt, WithPayload) made at another time",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestCollideOffender$")
			cmd.Env = append(os.Environ(), offenderEnv+"="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), want)
			require.Contains(t, string(out), "made at another time")
		})
	}
}

func TestCollideOffender(t *testing.T) {
	scope := idem.Scope{Source: "orders", Operation: "ship"}
	keys := map[string]func(order) idem.Key{
		"day":  func(o order) idem.Key { return scope.Key(o.Tenant, o.ID, time.Now().Format(time.DateOnly)) },
		"hour": func(o order) idem.Key { return scope.Key(o.Tenant, o.ID).OccurredAt(time.Now().Truncate(time.Hour)) },
	}
	if name := os.Getenv(offenderEnv); name != "" {
		idemtest.Kit[order]{Deliveries: []order{{"1", "23"}}, Keys: []func(order) idem.Key{keys[name]}}.Collide(t)
	}
}

// Two events with one key look like many other faults, and All names that one.
func TestCollideFirst(t *testing.T) {
	t.Parallel()
	one := func(payment) idem.Key { return credits.Key("payment") }
	k := kit(t, onPool(begins(true, creditOnce(one))))
	k.Keys = []func(payment) idem.Key{one}
	require.Contains(t, failure(t, func(tb idemtest.TB) { k.All(tb) }),
		"idemtest: Collide: Keys[0] of delivery 1 and Keys[0] of delivery 2 are one key")
}
