// Package policy has tests only. They read the module's own files and fail when a rule of the project is broken: who
// may import what, what may reach a user's program, that every example can be copied, that README tells the truth,
// and what the code must look like where a linter does not say it.
//
// Every rule is a function from sources to complaints, and has a test that shows it one offender: a rule that finds
// nothing is otherwise not to be told from a rule that looks at nothing.
package policy
