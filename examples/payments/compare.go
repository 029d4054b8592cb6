package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
)

const ledger = `
SELECT order_id, refund_id, receipt, amount
  FROM payments_ledger
 WHERE starts_with(order_id, $1::text || '-')`

// compare prints our ledger beside the provider's. A nil error means that they are equal, line by line.
func compare(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, bank *provider, name string, out io.Writer,
) error {
	rows, err := db.Query(ctx, ledger, name)
	if err != nil {
		return err
	}
	ours, err := pgx.CollectRows(rows, pgx.RowToStructByPos[booking])
	if err != nil {
		return err
	}
	bank.mu.Lock()
	theirs := slices.Clone(bank.ledger)
	bank.mu.Unlock()
	return tell(out, ours, theirs)
}

var errUnequal = errors.New("the ledgers are not equal")

func tell(out io.Writer, ours, theirs []booking) error {
	for _, l := range [][]booking{ours, theirs} {
		slices.SortFunc(l, func(a, b booking) int {
			return cmp.Or(strings.Compare(a.Order, b.Order), strings.Compare(a.Refund, b.Refund),
				strings.Compare(a.Receipt, b.Receipt))
		})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tpayments\tcharged\trefunded\tbalance\t\n")
	for _, l := range []struct {
		name string
		all  []booking
	}{{"our ledger", ours}, {"the provider's", theirs}} {
		var charged, refunded int64
		for _, b := range l.all {
			if b.Refund == "" {
				charged += b.Amount
			} else {
				refunded -= b.Amount
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", l.name, len(l.all), charged, refunded, charged-refunded)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if slices.Equal(ours, theirs) {
		_, err := fmt.Fprintf(out, "\nproof: all %d lines are equal, receipt by receipt\n", len(ours))
		return err
	}
	for _, b := range theirs {
		if !slices.Contains(ours, b) {
			fmt.Fprintf(out, "not in our ledger: %+v\n", b)
		}
	}
	for i, b := range ours {
		if !slices.Contains(theirs, b) || i > 0 && b == ours[i-1] {
			fmt.Fprintf(out, "in our ledger, and once too often: %+v\n", b)
		}
	}
	return errUnequal
}
