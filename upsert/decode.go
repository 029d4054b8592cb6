package upsert

import (
	"database/sql"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// cell receives one column of a stored row. It is a sql.Scanner, the one interface that pgx in every mode, pgx/stdlib and
// lib/pq serve alike. NULL leaves the field's zero value: the row is stored already, so a field that cannot hold NULL
// must not turn success into an error.
type cell struct {
	dst reflect.Value
	oid uint32
}

func (c cell) Scan(src any) error {
	dst := c.dst
	if s, ok := dst.Addr().Interface().(sql.Scanner); ok {
		err := s.Scan(src)
		if err == nil || src == nil {
			return err
		}
		// Drivers hand out one value in several forms, and a Scanner written for one driver may know no other.
		text := c.textOf(src)
		if s.Scan(text) == nil || s.Scan([]byte(text)) == nil {
			return nil
		}
		return err
	}
	if src == nil {
		dst.SetZero()
		return nil
	}
	if dst.Kind() == reflect.Pointer {
		dst.Set(reflect.New(dst.Type().Elem()))
		return cell{dst.Elem(), c.oid}.Scan(src)
	}
	switch v := src.(type) {
	case time.Time:
		if dst.Type() == timeType {
			dst.Set(reflect.ValueOf(v.UTC()))
			return nil
		}
	case []byte:
		if dst.Kind() == reflect.Slice && dst.Type().Elem().Kind() == reflect.Uint8 {
			dst.SetBytes(append([]byte{}, v...))
			return nil
		}
	}
	return c.scanText(c.textOf(src))
}

// scanText reads PostgreSQL's text form of the column's type.
func (c cell) scanText(text string) error {
	dst := c.dst
	switch dst.Kind() {
	case reflect.String:
		dst.SetString(text)
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n, err := strconv.ParseInt(text, 10, dst.Type().Bits()); err == nil {
			dst.SetInt(n)
			return nil
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n, err := strconv.ParseUint(text, 10, dst.Type().Bits()); err == nil {
			dst.SetUint(n)
			return nil
		}
	case reflect.Slice:
		if c.oid != pgtype.ByteaOID && dst.Type().Elem().Kind() == reflect.Uint8 {
			dst.SetBytes([]byte(text))
			return nil
		}
	}
	return pgtype.NewMap().Scan(c.oid, pgtype.TextFormatCode, []byte(text), dst.Addr().Interface())
}

func (c cell) textOf(src any) string {
	switch v := src.(type) {
	case string:
		return v
	case []byte:
		if c.oid == pgtype.ByteaOID {
			return `\x` + hex.EncodeToString(v)
		}
		return string(v)
	case bool:
		if v {
			return "t"
		}
		return "f"
	case time.Time:
		return encodeTime(v, c.oid)
	}
	return fmt.Sprint(src)
}
