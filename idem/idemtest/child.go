package idemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// childEnv tells a process that it is a child, and what to do.
const childEnv = "IDEMTEST_CHILD"

// Child reports whether the kit started this process, from the test binary, to be killed or to make keys. Such a
// process runs TestMain and one test, up to the call of the kit, and ignores Kit.DSN and Kit.Setup. Tests that start
// something slow for their database ask Child first, and leave it out.
func Child() bool { return os.Getenv(childEnv) != "" }

// childSpec is what a child is told.
type childSpec struct {
	Test, Site string // which call of the kit it is for
	Report     string // a file, for what it has to say

	DSN, Database string // none: it is to make keys
	Point         point
}

// reached and survived are what a child that is to be killed reports; the last line counts.
const (
	reached  = "reached"
	survived = "survived"
)

// kill has another process make the delivery, and die at the point.
func (l *lab[D]) kill(st *stage, p point) (hit bool, err error) {
	report, err := l.runChild(childSpec{DSN: l.DSN, Database: st.name, Point: p})
	if err != nil {
		return false, err
	}
	return report == reached, nil
}

// runChild runs the test binary again, up to this call, and returns what it reports.
func (l *lab[D]) runChild(spec childSpec) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "idemtest")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	spec.Test, spec.Site, spec.Report = l.t.Name(), l.site, filepath.Join(dir, "report")
	text, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.Timeout+childStart)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run="+pattern(spec.Test), "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.WaitDelay = time.Second
	out, runErr := cmd.CombinedOutput()
	said, err := os.ReadFile(spec.Report)
	if err != nil {
		return "", fmt.Errorf("the test binary was run again (%s) and did not come to the same call of the kit: %w\n%s", cmd,
			runErr, tail(out))
	}
	return string(said), nil
}

// childStart is how long a process may take before it delivers.
const childStart = 30 * time.Second

func tail(out []byte) string {
	const most = 2000
	return string(out[max(0, len(out)-most):])
}

// childTask returns what this process is to do, where it is a child of this very call.
func (l *lab[D]) childTask() (spec childSpec, ok bool) {
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &spec); err != nil {
		l.t.Fatalf("idemtest: read %s: %v", childEnv, err)
	}
	return spec, spec.Test == l.t.Name() && spec.Site == l.site
}

// beChild does what this process was started for, and ends it. It returns where that is another call.
func (l *lab[D]) beChild() {
	spec, ok := l.childTask()
	if !ok {
		return
	}
	say := func(text string) {
		if err := os.WriteFile(spec.Report, []byte(text), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, "idemtest:", err)
			os.Exit(1)
		}
	}
	if spec.Database == "" {
		say(l.keyText())
		os.Exit(0)
	}
	die := func(faultconn.Message) {
		say(reached)
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			_ = self.Kill() // at once, as the machine's loss would: nothing is closed, nothing deferred runs
		}
		select {}
	}
	cfg, err := pgxpool.ParseConfig(spec.DSN)
	if err != nil {
		fmt.Fprintln(os.Stderr, "idemtest:", err)
		os.Exit(1)
	}
	p := spec.Point
	w := newWire(nil)
	if p.N > 0 {
		w = newCut(p.fits(), 1, faultconn.Pass, die)
	}
	a, err := l.act(&stage{srv: &server{cfg: cfg}, name: spec.Database}, w)
	if err == nil {
		say(survived)
		err = l.deliver(l.ctx, a, l.Deliveries[p.Delivery])
	}
	if p.N == 0 && err == nil {
		die(faultconn.Message{})
	}
	fmt.Fprintln(os.Stderr, "idemtest: the point was not reached:", err)
	os.Exit(1)
}

// pattern returns the -run flag that fits one test and its parents.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// testPackage returns the import path of the package that is tested, for the command line.
func testPackage() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasSuffix(info.Path, ".test") {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return "."
}
