package upsert

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// typeSet are the types of a table's columns, and those that they are made of, by their oid.
type typeSet map[uint32]*typeInfo

// typeInfo is what the catalog says of a type.
type typeInfo struct {
	OID      uint32
	Kind     string // typtype: b base, c composite, d domain, e enum, r range, m multirange
	Category string
	Base     uint32   // of a domain: the type below it
	Elem     uint32   // of an array
	Span     uint32   // of a range: its bounds; of a multirange: its ranges
	Members  []uint32 // of a composite type
	Send     string   // in SQL, the function that gives the binary form
	Infinite bool     // the interval of a server whose ends of the range are the infinities
}

// base returns the type below all domains.
func (s typeSet) base(oid uint32) uint32 {
	for t := s[oid]; t != nil && t.Kind == "d"; t = s[oid] {
		oid = t.Base
	}
	return oid
}

// parts returns what a value of the type is made of; nothing where it is one value.
func (s typeSet) parts(oid uint32) []uint32 {
	t := s[oid]
	switch {
	case t == nil:
		return nil
	case t.Kind == "d":
		return []uint32{t.Base}
	case t.Kind == "c":
		return t.Members
	case t.Kind == "r" || t.Kind == "m":
		return []uint32{t.Span}
	case t.Elem != 0:
		return []uint32{t.Elem}
	}
	return nil
}

// varies says that the text of the type depends on the session.
func (s typeSet) varies(oid uint32) bool {
	switch oid {
	case pgtype.ByteaOID, pgtype.Float4OID, pgtype.Float8OID, pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID,
		pgtype.IntervalOID, moneyOID, pgtype.PointOID, pgtype.LineOID, pgtype.LsegOID, pgtype.BoxOID, pgtype.PathOID,
		pgtype.PolygonOID, pgtype.CircleOID:
		return true
	}
	return slices.ContainsFunc(s.parts(oid), s.varies)
}

// holds says that a value of the type holds one of type part.
func (s typeSet) holds(oid, part uint32) bool {
	return oid == part || slices.ContainsFunc(s.parts(oid), func(p uint32) bool { return s.holds(p, part) })
}

// hasArray says that a value of the type holds an array.
func (s typeSet) hasArray(oid uint32) bool {
	t := s[oid]
	return t != nil && t.Elem != 0 || slices.ContainsFunc(s.parts(oid), s.hasArray)
}

// unknown returns a type in oid whose binary form is not known here, 0 where there is none.
func (s typeSet) unknown(oid uint32) uint32 {
	parts := s.parts(oid)
	for _, p := range parts {
		if u := s.unknown(p); u != 0 {
			return u
		}
	}
	if t := s[oid]; len(parts) > 0 || t == nil || t.Kind == "c" || t.asText() {
		return 0
	}
	if oid == pgtype.TimetzOID || oid == moneyOID {
		return 0
	}
	if _, ok := pgtype.NewMap().TypeForOID(oid); ok && oid != pgtype.TIDOID {
		return 0
	}
	return oid
}

// asText says that the binary form of a type is its text. (Before PostgreSQL 15 "char", a byte, is among the strings.)
func (t *typeInfo) asText() bool {
	return t.Kind == "e" || t.Category == "S" && t.OID != pgtype.QCharOID
}
