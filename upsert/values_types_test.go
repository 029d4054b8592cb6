package upsert_test

import (
	sqldriver "database/sql/driver"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Types as programs have them.
type (
	namedString string
	namedInt    int32
	namedBytes  []byte
	namedTime   time.Time
	stamp       struct{ time.Time }

	// level has methods for text and none for databases.
	level struct{ n int }

	// grade is a Valuer and a Scanner that refuses NULL.
	grade string

	// oneWay writes what it cannot read.
	oneWay int
)

func (l level) MarshalText() ([]byte, error) { return []byte("level-" + fmt.Sprint(l.n)), nil }
func (l *level) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "level-%d", &l.n)
	return err
}

func (g grade) Value() (sqldriver.Value, error) { return "grade " + string(g), nil }
func (g *grade) Scan(src any) error {
	s, ok := src.(string)
	if !ok || !strings.HasPrefix(s, "grade ") {
		return fmt.Errorf("no grade: %T", src)
	}
	*g = grade(strings.TrimRight(strings.TrimPrefix(s, "grade "), " "))
	return nil
}

func (oneWay) MarshalText() ([]byte, error) { return []byte("active"), nil }

// amount is a decimal as libraries have them: with methods for text and for databases, and a String method.
type amount struct{ r *big.Rat }

func dec(s string) amount {
	r, _ := new(big.Rat).SetString(s)
	return amount{r}
}

func (a amount) String() string {
	if a.r == nil {
		return "none"
	}
	return a.r.FloatString(2)
}

func (a amount) MarshalText() ([]byte, error)    { return []byte(a.String()), nil }
func (a amount) MarshalJSON() ([]byte, error)    { return []byte(`"` + a.String() + `"`), nil }
func (a amount) Value() (sqldriver.Value, error) { return a.String(), nil }

func (a *amount) UnmarshalText(b []byte) error { return a.Scan(string(b)) }
func (a *amount) UnmarshalJSON(b []byte) error { return a.Scan(strings.Trim(string(b), `"`)) }
func (a *amount) Scan(src any) error {
	r, ok := new(big.Rat).SetString(strings.TrimSpace(fmt.Sprint(src)))
	if !ok {
		return fmt.Errorf("no amount: %T", src)
	}
	a.r = r
	return nil
}

// cents is a number that prints itself otherwise; flag and rate are named kinds.
type (
	cents    int64
	switched bool
	rate     float64
)

func (c cents) String() string { return fmt.Sprintf("%d.%02d", int64(c)/100, int64(c)%100) }

// id128 is a uuid as libraries have them.
type id128 [16]byte

func (u id128) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
func (u id128) MarshalText() ([]byte, error)    { return []byte(u.String()), nil }
func (u id128) Value() (sqldriver.Value, error) { return u.String(), nil }

func (u *id128) UnmarshalText(b []byte) error { return u.Scan(string(b)) }
func (u *id128) Scan(src any) error {
	switch s := src.(type) {
	case string:
		var p pgtype.UUID
		if err := p.Scan(s); err != nil {
			return err
		}
		*u = p.Bytes
		return nil
	case []byte:
		if len(s) == 16 {
			copy(u[:], s)
			return nil
		}
		return u.Scan(string(s))
	}
	return fmt.Errorf("no uuid: %T", src)
}

// doc is a document with tags for JSON.
type doc struct {
	A int      `json:"a"`
	B []string `json:"b,omitempty"`
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}
