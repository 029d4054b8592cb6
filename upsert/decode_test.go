package upsert

import (
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// pgx knows the array of no domain, and reads no 1.00 as an integer.
func TestReadsArraysItemByItem(t *testing.T) {
	t.Parallel()
	const domains = 99999
	for _, oid := range []uint32{pgtype.NumericArrayOID, domains} {
		for text, want := range map[string][]int32{
			"{}": {}, "{1,2}": {1, 2}, "{1.00,2.00}": {1, 2}, "{1.0,NULL}": {1, 0}, "{{1.0},{2}}": {1, 2}, "[2:2]={3.00}": {3},
		} {
			var got pgtype.Array[int32]
			require.NoError(t, decoder{oid: oid, elem: pgtype.NumericOID}.decode(reflect.ValueOf(&got).Elem(), text), text)
			require.Equal(t, want, got.Elements, text)
			require.True(t, got.Valid)
		}
		for _, text := range []string{"", "1", "{1.5}", "{x}"} {
			var got pgtype.Array[int32]
			require.Error(t, decoder{oid: oid, elem: pgtype.NumericOID}.decode(reflect.ValueOf(&got).Elem(), text), text)
		}
	}
}
