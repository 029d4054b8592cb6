package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mechanismsEnv has TestMechanisms break each mechanism, which takes minutes.
const mechanismsEnv = "PGONCE_MECHANISMS"

// mechanism is what a promise rests on, and a test that fails without it.
type mechanism struct {
	promise string // how the row of the promise begins
	name    string // of what is taken away
	edits   []edit
	pkg     string
	run     string // the -run flag, with the test's name first
}

// edit replaces the only place with this text.
type edit struct{ file, old, new string }

const (
	claimSQL   = "internal/claim/sql.go"
	reserveSQL = "internal/claim/reserve_sql.go"
	purgeSQL   = "internal/retention/sql.go"
)

var mechanisms = []mechanism{
	{
		"One effect per key", "the primary key", []edit{
			{"internal/schema/sql/0001_plain.sql", "  PRIMARY KEY (key, operation, source)", "  CHECK (key <> '')"},
			{claimSQL, "$4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO NOTHING`", "$4::bytea, $5::int8)`"},
		}, "./idem", "^TestConformance$/^cache_statement$/^Concurrent$/^RunOneKey$",
	},
	{
		"One effect per key", "fn runs only for the row that was inserted", []edit{
			{
				"internal/claim/claim.go", "	if s.Rows == 0 {\n		return false, nil\n	}\n	if c.token == nil {",
				"	if s.Rows == 0 {\n		c.token = new(int64)\n		return true, nil\n	}\n	if c.token == nil {",
			},
		}, "./idem", "^TestConformance$/^cache_statement$/^Concurrent$/^RunOneKey$",
	},
	{
		"Key and effect stand or fall together", "a failing fn fails the transaction", []edit{
			{"internal/claim/do.go", "c.guard(fn), tx.Fail)", "c.guard(fn), func(context.Context) error { return nil })"},
		}, "./idem", "^TestConformance$/^cache_statement$/^Failing$/^Do$",
	},
	{
		"Key and effect stand or fall together", "a failing fn fails the transaction", []edit{
			{"internal/claim/do.go", "c.guard(fn), tx.Fail)", "c.guard(fn), func(context.Context) error { return nil })"},
		}, "./idem", "^TestCommitAfterFailure$",
	},
	{
		"Only a committed row is a duplicate", "the second statement", []edit{
			{"internal/claim/claim.go", "		return Result{}, errAgain\n", "		return Result{Outcome: Duplicate}, nil\n"},
		}, "./idem", "^TestConformance$/^cache_statement$/^(Outcomes|Setup)$",
	},
	{
		"Different keys never meet", "the escape of the escape", []edit{
			{"idem/key.go", `strings.ReplaceAll(s, "%", "%25")`, "s"},
		}, "./idem", "^FuzzKeysDiffer$",
	},
	{
		"Different keys never meet", "the escape of the separator", []edit{
			{
				"idem/key.go", `strings.ReplaceAll(strings.ReplaceAll(s, "%", "%25"), "/", "%2F")`,
				`strings.ReplaceAll(s, "%", "%25")`,
			},
		}, "./idem", "^FuzzKeysDiffer$",
	},
	{
		"A lost reply to COMMIT", "whether", []edit{
			{"internal/claim/claim.go", "	case r.holds(m.own):\n", "	case r.holds(m.own) && m.own == nil:\n"},
		}, "./idem", "^TestLostCommit$",
	},
	{
		"A lost reply to COMMIT", "by whom", []edit{
			{"internal/claim/claim.go", "	case r.holds(m.own):\n", "	case m.own != nil:\n"},
		}, "./idem", "^TestLostCommitOfSomebodyElse$",
	},
	{
		"A duplicate writes nothing", "DO NOTHING", []edit{
			{
				claimSQL, "$4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO NOTHING`",
				"$4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO UPDATE SET source = EXCLUDED.source WHERE false`",
			},
		}, "./idem", "^TestDuplicatesWriteNothing$",
	},
	{
		"A duplicate writes nothing", "DO NOTHING", []edit{
			{
				claimSQL, "$4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO NOTHING`",
				"$4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO UPDATE SET source = EXCLUDED.source WHERE false`",
			},
		}, "./internal/claim", "^TestWAL$",
	},
	{
		"A payment provider charges once", "no attempt that the provider may have forgotten", []edit{
			{reserveSQL, "AND ($5::int8 IS NULL\n", "AND (true OR $5::int8 IS NULL\n"},
		}, "./idem", "^TestKilledCall$",
	},
	{
		"A payment provider charges once", "the lease", []edit{
			{reserveSQL, "   AND lease_until <= statement_timestamp()\n", ""},
			{"internal/claim/claim.go", "	case r.Leased:\n		return Result{}, ErrInProgress\n", ""},
		}, "./idem", "^TestReservationModel$",
	},
	{
		"A payment provider charges once", "the lease, in the statement that takes over", []edit{
			{reserveSQL, "   AND lease_until <= statement_timestamp()\n", ""},
		}, "./idem", "^TestTakeOverRaces$",
	},
	{
		"An attempt that outlived its lease", "the attempt", []edit{
			{reserveSQL, "   AND attempt = $4::int4\n", "   AND $4::int4 IS NOT NULL\n"},
		}, "./idem", "^TestReservation$",
	},
	{
		"An attempt that outlived its lease", "the row's creation", []edit{
			{
				reserveSQL, "   AND processed_at = timestamptz 'epoch' + $5::int8",
				"   AND timestamptz '-infinity' < timestamptz 'epoch' + $5::int8",
			},
		}, "./idem", "^TestReservation$",
	},
	{
		"A late event never overwrites", "the guard", []edit{
			{"upsert/render.go", `guard = "(" + w.obsolete("t", "excluded") + ") IS NOT TRUE"`, `guard = "true"`},
		}, "./upsert", "^TestRivalTransaction$/^plain$/^read_committed$/^bulk_false$",
	},
	{
		"Only what is done and has expired", "done", []edit{
			{purgeSQL, "   AND lease_until IS NULL\n", ""},
		}, "./idem", "^TestPurgeRaces$",
	},
	{
		"Only what is done and has expired", "expired", []edit{
			{purgeSQL, "   AND processed_at < now() - ", "   AND now() > now() - "},
		}, "./idem", "^TestPurgeRaces$",
	},
	{
		"Only what is done and has expired", "the insert that waits, and no look before it", []edit{
			{
				claimSQL, "VALUES ($1::text, $2::text, $3::text, $4::bytea, $5::int8)\nON CONFLICT (key, operation, source) DO " +
					"NOTHING`",
				"SELECT $1::text, $2::text, $3::text, $4::bytea, $5::int8\n" +
					" WHERE NOT EXISTS (SELECT FROM processed_events WHERE key = $3::text FOR UPDATE)\n" +
					"ON CONFLICT (key, operation, source) DO NOTHING`",
			},
		}, "./idem", "^TestClaimMeetsPurge$/^(Do|Run)$",
	},
	{
		"In partitions, too", "equal keys meet in one partition", []edit{
			{"internal/schema/partitions.go", "		if !taken {\n", "		if !taken && r < 0 {\n"},
		}, "./dedup", "^TestVerifyHash$",
	},
	{
		"In partitions, too", "the CHECKs are validated", []edit{
			{"internal/schema/checks.go", "		case !found.valid:\n", "		case !found.valid && p.name == \"\":\n"},
		}, "./dedup", "^TestVerifyWeekly$",
	},
	{
		"In partitions, too", "the week is a function of the time", []edit{
			{
				"internal/claim/weekly.go",
				"date_trunc('week', e.at AT TIME ZONE 'UTC')::date, $8",
				"date_trunc('week', e.at)::date, $8",
			},
		}, "./idem", "^TestWeeklyBoundary$",
	},
	{
		"The constraint is there", "Verify looks for it", []edit{
			{"internal/schema/indexes.go", "	if !sound && !explained {\n", "	if !sound && !explained && len(v.key) == 0 {\n"},
		}, "./dedup", "^TestVerify$",
	},
}

// Every promise of README and of internal/PROMISES.md has a mechanism here, and every test that its row names stands
// for one. Where the environment says so, each mechanism is taken away, in a copy that only the compiler sees, and
// its test has to fail.
func TestMechanisms(t *testing.T) {
	report(t, checkMechanisms(find(t, "README.md"), mechanisms))
	report(t, checkMechanisms(find(t, "internal/PROMISES.md"), beside))
	for i, m := range slices.Concat(mechanisms, beside) {
		t.Run(fmt.Sprintf("%02d %s: %s", i+1, m.promise, m.name), func(t *testing.T) {
			t.Parallel() // two at a time in CI: more would be slower, and a test could fail of that
			overlay := writeOverlay(t, m)
			if os.Getenv(mechanismsEnv) == "" {
				return // the texts are found, and that is all
			}
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-short", "-vet=off", "-failfast", "-timeout=4m",
				"-overlay="+overlay, "-run="+m.run, m.pkg)
			cmd.Dir = rootPath(t)
			out, err := cmd.CombinedOutput()
			t.Logf("%v: %s %s", time.Since(begun).Round(time.Second), m.pkg, m.run)
			if complaint := survived(string(out), err, m.run); complaint != "" {
				t.Errorf("%s\n%s", complaint, out)
			}
		})
	}
}

// survived complains about a test that did not fail by itself: one that was not built or not found proves nothing.
func survived(out string, err error, run string) string {
	failed := failedTest.FindStringSubmatch(out)
	switch {
	case err == nil:
		return "it passes without the mechanism: " + run
	case failed == nil || !slices.Contains(testName.FindAllString(run, -1), failed[1]):
		return "it did not fail, but could not run: " + run
	}
	return ""
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+) `)

// writeOverlay writes the edited files, and for the go command which files they replace.
func writeOverlay(t *testing.T, m mechanism) string {
	t.Helper()
	dir := t.TempDir()
	texts := map[string]string{}
	for _, e := range m.edits {
		if texts[e.file] == "" {
			texts[e.file] = find(t, e.file)
		}
		text, complaint := e.apply(texts[e.file])
		if complaint != "" {
			t.Fatal(complaint)
		}
		texts[e.file] = text
	}
	replace := map[string]string{}
	for file, text := range texts {
		edited := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[rootPath(t, file)] = edited
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

func (e edit) apply(text string) (edited, complaint string) {
	if n := strings.Count(text, e.old); n != 1 {
		return "", fmt.Sprintf("%s: %d places with %q: name the one that is the mechanism", e.file, n, e.old)
	}
	return strings.Replace(text, e.old, e.new, 1), ""
}

// checkMechanisms holds the list against the table of promises.
func checkMechanisms(text string, all []mechanism) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	tb, col, _ := tableWith(text, "promise", "mechanism", "test")
	known := map[string]bool{}
	for _, row := range tb.rows {
		promise := cell(row, col["promise"])
		named := testName.FindAllString(cell(row, col["test"]), -1)
		var broken []string
		for _, m := range all {
			if strings.HasPrefix(promise, m.promise) {
				known[m.promise] = true
				broken = append(broken, testName.FindAllString(m.run, -1)...)
			}
		}
		for _, test := range named {
			if !slices.Contains(broken, test) {
				complain("%s stands for %q, and no mechanism is taken away from it", test, promise)
			}
		}
		for _, test := range broken {
			if !slices.Contains(named, test) {
				complain("%s fails without a mechanism of %q, whose row does not name it", test, promise)
			}
		}
	}
	for _, m := range all {
		if !known[m.promise] {
			complain("nothing is promised that begins with %q", m.promise)
		}
	}
	return complaints
}

func TestMechanismsSeesOffenders(t *testing.T) {
	const readme = "| Promise | Mechanism | Test |\n|---|---|---|\n" +
		"| Once, and for all | PRIMARY KEY | `TestDo`, `FuzzKey` |\n"
	one := func(promise, run string) mechanism { return mechanism{promise: promise, run: run} }
	for _, tc := range []struct {
		name string
		all  []mechanism
		want string
	}{
		{"complete", []mechanism{one("Once", "^TestDo$/x"), one("Once", "^FuzzKey$")}, ""},
		{"a test without a mechanism", []mechanism{one("Once", "^TestDo$")}, "FuzzKey stands for"},
		{"a test that is not named", []mechanism{one("Once", "^(TestDo|FuzzKey|TestOther)$")}, "TestOther fails without"},
		{"no such promise", []mechanism{one("Once", "^(TestDo|FuzzKey)$"), one("Twice", "^TestDo$")}, `begins with "Twice"`},
	} {
		t.Run(tc.name, func(t *testing.T) { expect(t, checkMechanisms(readme, tc.all), tc.want) })
	}
	for _, tc := range []struct{ name, text, want string }{
		{"one place", "a b c", ""},
		{"none", "a c", "0 places"},
		{"two", "b b", "2 places"},
	} {
		_, complaint := edit{"f", "b", "x"}.apply(tc.text)
		if tc.want == "" && complaint != "" || !strings.Contains(complaint, tc.want) {
			t.Errorf("%s: %q", tc.name, complaint)
		}
	}
	failed := fmt.Errorf("exit status 1")
	for _, tc := range []struct {
		name, out string
		err       error
		want      string
	}{
		{"it bites", "--- FAIL: TestDo (0.1s)\nFAIL\n", failed, ""},
		{"it passes", "ok\n", nil, "passes without"},
		{"it is not built", "FAIL x [build failed]\n", failed, "could not run"},
		{"another one fails", "--- FAIL: TestOther (0.1s)\n", failed, "could not run"},
	} {
		if got := survived(tc.out, tc.err, "^TestDo$"); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}
