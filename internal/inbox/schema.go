package inbox

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

// Tables is the kind of table. The lock's id is the first eight bytes of SHA-256("pgonce inbox migrate").
func Tables() boxes.Kind {
	return boxes.Kind{
		Noun: "inbox", Things: "messages", Done: "handled", Lock: 0x5859ae1182c4651a, Session: true,
		Torn:  "a failure in between keeps a handler's writes, and the message is handled again",
		Parse: ParseName, Steps: migrations, Verify: verify,
	}
}
