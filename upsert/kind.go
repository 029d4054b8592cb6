package upsert

import "fmt"

// Kind says what a [Problem] is about. Its String, and its JSON, is a short name that stays the same from version to
// version.
type Kind uint8

// The kinds of problems.
const (
	KindTableMissing     Kind = iota + 1 // the table is missing, or not on the search path
	KindNotATable                        // a view that cannot be written, say
	KindColumnMissing                    // a tag names no column
	KindColumnType                       // what comes back would depend on the session
	KindColumnGenerated                  // so that it cannot be written, identity columns among them
	KindColumnNotWritten                 // it is NOT NULL, has no default, and no clause names it
	KindColumnNullable                   // a column of the key
	KindFieldType                        // the field can take no value of its column
	KindVersionType                      // it does not order events
	KindDeletionFails                    // a deletion has no value for a NOT NULL column
	// PostgreSQL cannot make an index of the target, or types of expressions are not known
	KindTargetUnclear
	KindIndexMissing // no unique index on exactly the target
	KindIndexInvalid
	KindConstraintDeferrable
	KindPredicate        // of the index, is another than that of Where
	KindCollation        // of the index, is another than that of its column
	KindGuardPartial     // a late event gets around a guard on a partial target
	KindOtherUniqueIndex // that an event can clash with
	KindOtherConstraint  // EXCLUDE
	KindTrigger          // that changes or drops rows
	KindRule
	KindInheritance
	KindSpread // a table of Citus, for which the statement cannot be made
)

// kindNames returns the name of each kind.
func kindNames() [KindSpread + 1]string {
	return [...]string{
		0:                        "unknown",
		KindTableMissing:         "table missing",
		KindNotATable:            "not a table",
		KindColumnMissing:        "column missing",
		KindColumnType:           "column type",
		KindColumnGenerated:      "column generated",
		KindColumnNotWritten:     "column not written",
		KindColumnNullable:       "column nullable",
		KindFieldType:            "field type",
		KindVersionType:          "version type",
		KindDeletionFails:        "deletion fails",
		KindTargetUnclear:        "target unclear",
		KindIndexMissing:         "index missing",
		KindIndexInvalid:         "index invalid",
		KindConstraintDeferrable: "constraint deferrable",
		KindPredicate:            "predicate",
		KindCollation:            "collation",
		KindGuardPartial:         "guard partial",
		KindOtherUniqueIndex:     "other unique index",
		KindOtherConstraint:      "other constraint",
		KindTrigger:              "trigger",
		KindRule:                 "rule",
		KindInheritance:          "inheritance",
		KindSpread:               "spread",
	}
}

// String returns the name of the kind.
func (k Kind) String() string {
	names := kindNames()
	if int(k) >= len(names) {
		k = 0
	}
	return names[k]
}

// MarshalText returns the name of the kind.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the name of a kind. An unknown name is an error.
func (k *Kind) UnmarshalText(name []byte) error {
	for i, known := range kindNames() {
		if i > 0 && known == string(name) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("upsert: there is no kind of problem %q", name)
}
