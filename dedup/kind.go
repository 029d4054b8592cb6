package dedup

import "fmt"

// Kind says what a [Problem] is about. Its String, and its JSON, is a short name that stays the same from version to
// version.
type Kind uint8

// The kinds of problems.
const (
	KindTableMissing         Kind = iota + 1 // the table is missing
	KindTableInAnotherSchema                 // the search path means a table in another schema
	KindNotATable                            // it is a view, say
	KindNotOurTable                          // it lacks a column of the key
	KindNotLogged
	KindColumnMissing
	KindColumnType
	KindColumnNullable
	KindColumnDefault
	KindColumnGenerated
	KindCollation
	KindConstraintMissing
	KindConstraintDeferrable
	KindIndexInvalid
	KindIndexPartial
	KindIndexOnAnExpression
	KindIndexHasMoreColumns
	KindOtherUniqueIndex
	KindTrigger // before a statement
	KindTriggerAfter
	KindRule
	KindForeignKey
	KindOtherConstraint // EXCLUDE, or a CHECK that is not ours
	KindInheritance
	KindReplicaIdentity // none, where updates or deletes are published
	KindNotPublished    // other tables are
	KindRowSecurity
	KindRightsMissing
	KindRetentionTooShort
	KindLayout // another one than the table was made with
	KindPartitionMissing
	KindPartitionHalfDetached
	KindCheckMissing // of layout Weekly, as are the next three
	KindCheckNotValidated
	KindDefaultPartition
	KindTooFewPartitionsAhead
	KindAsynchronousCommit // of the session
	KindClientEncoding     // of the session: it stores a key that is not ASCII as another one
	KindNotDurable         // of the server: fsync or full_page_writes is off
	KindIndexMissing       // of an outbox, as are the next two
	KindNumbersOutOfOrder
	KindLaneMissing
	KindNotSpread // of Citus, as are the next four; see CITUS.md
	KindReferenceTable
	KindReplicatedByStatements
	KindColocation
	KindLocalTable    // a table beside ours, which may hold effects
	KindNotPostgreSQL // a server that speaks its protocol: CockroachDB, YugabyteDB
	KindSpread        // an inbox or an outbox on the nodes of Citus
)

// kindNames returns the name of each kind.
func kindNames() [KindSpread + 1]string {
	return [...]string{
		0:                         "unknown",
		KindTableMissing:          "table missing",
		KindTableInAnotherSchema:  "table in another schema",
		KindNotATable:             "not a table",
		KindNotOurTable:           "not our table",
		KindNotLogged:             "not logged",
		KindColumnMissing:         "column missing",
		KindColumnType:            "column type",
		KindColumnNullable:        "column nullable",
		KindColumnDefault:         "column default",
		KindColumnGenerated:       "column generated",
		KindCollation:             "collation",
		KindConstraintMissing:     "constraint missing",
		KindConstraintDeferrable:  "constraint deferrable",
		KindIndexInvalid:          "index invalid",
		KindIndexPartial:          "index partial",
		KindIndexOnAnExpression:   "index on an expression",
		KindIndexHasMoreColumns:   "index has more columns",
		KindOtherUniqueIndex:      "other unique index",
		KindTrigger:               "trigger",
		KindTriggerAfter:          "trigger after",
		KindRule:                  "rule",
		KindForeignKey:            "foreign key",
		KindOtherConstraint:       "other constraint",
		KindInheritance:           "inheritance",
		KindReplicaIdentity:       "replica identity",
		KindNotPublished:          "not published",
		KindRowSecurity:           "row security",
		KindRightsMissing:         "rights missing",
		KindRetentionTooShort:     "retention too short",
		KindLayout:                "layout",
		KindPartitionMissing:      "partition missing",
		KindPartitionHalfDetached: "partition half detached",
		KindCheckMissing:          "check missing",
		KindCheckNotValidated:     "check not validated",
		KindDefaultPartition:      "default partition",
		KindTooFewPartitionsAhead: "too few partitions ahead",
		KindAsynchronousCommit:    "asynchronous commit",
		KindClientEncoding:        "client encoding",
		KindNotDurable:            "not durable",
		KindIndexMissing:          "index missing",
		KindNumbersOutOfOrder:     "numbers out of order",
		KindLaneMissing:           "lane missing",

		KindNotSpread:              "not spread",
		KindReferenceTable:         "reference table",
		KindReplicatedByStatements: "replicated by statements",
		KindColocation:             "colocation",
		KindLocalTable:             "local table",
		KindNotPostgreSQL:          "not PostgreSQL",
		KindSpread:                 "spread",
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
	return fmt.Errorf("dedup: there is no kind of problem %q", name)
}
