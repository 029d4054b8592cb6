package inbox

import (
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// DefaultTable is the table of a Table without a name.
const DefaultTable = "inbox"

// maxTable leaves room for the longest suffix of an index: PostgreSQL cuts a name that is too long, without an error.
const maxTable = pg.MaxIdentifier - len("_finished")

// ParseName reads the name of a table; empty is [DefaultTable].
func ParseName(s string) (pg.Name, error) {
	if s == "" {
		return pg.Name{Table: DefaultTable}, nil
	}
	name, err := pg.ParseName(s)
	if err == nil && len(name.Table) > maxTable {
		err = fmt.Errorf("the table's name has %d bytes, more than %d: the names of its indexes are longer",
			len(name.Table), maxTable)
	}
	return name, err
}
