package outbox

import (
	_ "embed"

	"github.com/pgonce/pgonce/internal/boxes"
	"github.com/pgonce/pgonce/internal/pg"
)

//go:embed sql/0001.sql
var table0001 string

// migrations returns the SQL of one version after the other, the first of version 1.
func migrations(name pg.Name) []string {
	// Pinned, for a CHECK or an index keeps for ever what was found for its operators at its creation.
	return []string{render(name, pg.Pin(table0001))}
}

// Tables is the kind of table. The lock's id is the first eight bytes of SHA-256("pgonce outbox migrate").
func Tables() boxes.Kind {
	return boxes.Kind{
		Noun: "outbox", Things: "events", Done: "published", Lock: 0x267215c45b6ac5cf,
		Torn:  "a failure in between keeps a change, and its event is never published",
		Parse: ParseName, Steps: migrations, Verify: verify,
	}
}
