package inbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

// The statements on the default table are made once and for all: made anew for each message they took the client more
// time than everything else that it does to store one.
func TestStatementsAreMadeOnce(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = Table{}.SQL() }))
	name, err := ParseName(`"odd.schema"."in""box"`)
	require.NoError(t, err)
	for i, sql := range For(name).Texts() {
		require.NotContains(t, sql, "/*")
		ours := For(pg.Name{Table: DefaultTable}).Texts()[i]
		require.Equal(t, strings.ReplaceAll(ours, `"inbox"`, `"odd.schema"."in""box"`), sql)
	}
}
