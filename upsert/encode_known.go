package upsert

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// encodeKnown encodes types of other packages for which the general rules would not store what pgx stores.
func encodeKnown(v reflect.Value, oid uint32) (text string, null, done bool, err error) {
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		if t = t.Elem(); v.IsNil() {
			return "", true, true, nil
		}
	}
	switch x := v.Interface().(type) {
	case pgtype.Interval:
		if oid == pgtype.IntervalOID {
			return encodeInterval(x), !x.Valid, true, nil
		}
	case *pgtype.Interval:
		return encodeKnown(v.Elem(), oid)
	case pgtype.Hstore:
		if isJSON(oid) {
			break
		}
		if oid < firstOwnOID {
			return "", false, true, errors.New("a pgtype.Hstore fits an hstore only: as text it would be another each time")
		}
		return encodeHstore(x), x == nil, true, nil
	case netip.Addr:
		if done, err := fitsAddress(x.IsValid(), oid); done {
			return "", err == nil, true, err
		}
	case netip.Prefix:
		if done, err := fitsAddress(x.IsValid(), oid); done {
			return "", err == nil, true, err
		}
	case net.IP:
		if isJSON(oid) || oid == pgtype.ByteaOID || x == nil {
			break
		}
		// As pgx has it: what net.ParseIP makes of an IPv4 address is one of IPv6 that holds it.
		addr, ok := netip.AddrFromSlice(x)
		if !ok || oid != pgtype.InetOID && oid != pgtype.CIDROID {
			return "", false, true, errors.New("a net.IP fits an inet only; use netip.Addr, or a string")
		}
		return addr.String(), false, true, nil
	}
	if t.PkgPath() == pgtypePath && !isJSON(oid) {
		errFit := fmt.Errorf("a %s does not fit the column's type", t)
		m := pgtype.NewMap()
		if typ, ok := m.TypeForOID(oid); ok {
			// As text the server takes much for an interval, or for bytes, that nobody meant as one.
			if typ.Codec.PlanEncode(m, oid, pgtype.TextFormatCode, v.Interface()) == nil && !isTextOID(oid) ||
				oid == pgtype.ByteaOID || oid == pgtype.XMLOID {
				return "", false, true, errFit
			}
			b, err := m.Encode(oid, pgtype.TextFormatCode, v.Interface(), nil)
			if err != nil {
				err = errFit
			}
			return string(b), b == nil, true, err
		}
		if oid < firstOwnOID && t != reflect.TypeFor[pgtype.Text]() {
			return "", false, true, errFit
		}
	}
	if oid == pgtype.XMLOID && v.Kind() != reflect.Pointer && v.Kind() != reflect.String && !isBytes(t) && !implements(t,
		valuerType) {
		return "", false, true, fmt.Errorf("a %s is no document: give it as a string", t) // for pgx would marshal it
	}
	if t.PkgPath() == "math/big" && !takesNumbers(oid) {
		return "", false, true, errNumber
	}
	return "", false, false, nil
}

// fitsAddress settles an address for a column that none fits, and the zero one, which is NULL among addresses.
func fitsAddress(valid bool, oid uint32) (done bool, err error) {
	switch {
	case oid == pgtype.InetOID || oid == pgtype.CIDROID:
		return !valid, nil
	case isJSON(oid) || isTextOID(oid):
		return false, nil
	}
	return true, errors.New("an address fits an inet, a cidr or a text only")
}

// encodeHstore writes pairs in the order of their keys.
func encodeHstore(pairs map[string]*string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(pairs)) {
		if i > 0 {
			b.WriteByte(',')
		}
		writeElement(&b, k, false)
		b.WriteString("=>")
		if v := pairs[k]; v != nil {
			writeElement(&b, *v, false)
		} else {
			writeElement(&b, "", true)
		}
	}
	return b.String()
}

// moneyOID is the type whose text depends on lc_monetary.
const moneyOID = 790

// firstOwnOID is the first that a type has which is not PostgreSQL's own.
const firstOwnOID = 16384

var (
	pgtypePath = reflect.TypeFor[pgtype.Text]().PkgPath()
	errNumber  = errors.New("a number fits a column of numbers only, or one of text")
)

// takesNumbers says that a number may stand for a value of the type. (To interval 7 is seconds, and to cidr a network.)
func takesNumbers(oid uint32) bool {
	switch oid {
	case pgtype.BoolOID, pgtype.ByteaOID, pgtype.UUIDOID, pgtype.DateOID, pgtype.TimeOID, pgtype.TimetzOID,
		pgtype.TimestampOID,
		pgtype.TimestamptzOID, pgtype.IntervalOID, pgtype.InetOID, pgtype.CIDROID, pgtype.MacaddrOID, pgtype.BitOID,
		pgtype.VarbitOID,
		pgtype.XMLOID, moneyOID:
		return false
	}
	return true
}

func isTextOID(oid uint32) bool {
	return oid == pgtype.TextOID || oid == pgtype.VarcharOID || oid == pgtype.BPCharOID
}
