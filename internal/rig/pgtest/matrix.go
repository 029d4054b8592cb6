package pgtest

import (
	"os"
	"slices"
)

// Full reports whether this run is of the full matrix: every table of tests over every mode, driver and layout. The
// variable PGONCE_MATRIX asks for it, and CI sets that. A run without it meets each of them too, but not in each test.
func Full() bool { return os.Getenv("PGONCE_MATRIX") != "" }

// Matrix returns what a wide table of tests runs over: all of it in a full run, else those that typical names. It
// panics where typical names what is not there: a table that runs over nothing passes.
func Matrix[T any](all []T, name func(T) string, typical ...string) []T {
	return pick(Full(), all, name, typical)
}

// LongMatrix is [Matrix] for a table whose full run takes many minutes: PGONCE_LONG asks for that.
func LongMatrix[T any](all []T, name func(T) string, typical ...string) []T {
	return pick(os.Getenv("PGONCE_LONG") != "", all, name, typical)
}

// Sample returns every n-th of a row of cases that differ in a number alone, such as the messages at which a
// connection is cut: all of them in a full run. An odd n meets both of what alternates.
func Sample[T any](all []T, n int) []T {
	if Full() {
		return all
	}
	var some []T
	for i := 0; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

func pick[T any](full bool, all []T, name func(T) string, typical []string) []T {
	if full {
		return all
	}
	var some []T
	for _, want := range typical {
		i := slices.IndexFunc(all, func(v T) bool { return name(v) == want })
		if i < 0 {
			panic("pgtest: the matrix has no " + want)
		}
		some = append(some, all[i])
	}
	if len(some) == 0 {
		panic("pgtest: the matrix is empty")
	}
	return some
}
