//go:build linux || darwin || freebsd

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// Advice is what to tell somebody whose machine has no PostgreSQL: one command a line.
const Advice = `  apt-get install postgresql           Debian, Ubuntu
  dnf install postgresql-server        Fedora, Red Hat
  apk add postgresql                   Alpine
  brew install postgresql@18           macOS
  export ` + BinEnv + `=/path/to/bin    server binaries somewhere else`

const downloadTimeout = 10 * time.Minute

// Source says where [Download] gets the binaries from and where it puts them. The zero value is the public repository,
// and the account's cache folder.
type Source struct {
	// Repository is the URL of a Maven repository with the artifacts io.zonky.test.postgres. Empty: Maven Central.
	Repository string

	// Archives is the folder for the archive as it was downloaded. Empty: the one that all users of
	// embedded-postgres share, ~/.embedded-postgres-go, so that an archive is downloaded once. Without a home
	// the archive is not kept.
	Archives string

	// Binaries is the folder that gets a folder with the unpacked binaries. Empty: pgonce in the account's cache
	// folder; for root, whose home is closed to the account that the server runs as, /var/cache/pgonce.
	Binaries string
}

// Download gets server binaries for this machine and returns their folder, for [Config.BinDir]. When they are there
// from an earlier call, it uses no network. Processes that call it at once download once. At most ten minutes.
func Download(ctx context.Context, src Source) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	bin, err := src.download(ctx)
	if err != nil {
		return "", fmt.Errorf("pgserver: download PostgreSQL: %w", err)
	}
	return bin, nil
}

func (src Source) download(ctx context.Context) (string, error) {
	base, err := src.binaries()
	if err != nil {
		return "", err
	}
	version := embeddedpostgres.V18
	target := filepath.Join(base, fmt.Sprintf("postgresql-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	bin := filepath.Join(target, "bin")
	if hasServer(bin) {
		return bin, nil
	}
	lock, err := lockFolder(ctx, base)
	if err != nil {
		return "", fmt.Errorf("wait for another process that downloads: %w", err)
	}
	defer lock.Close()
	if hasServer(bin) {
		return bin, nil
	}

	// Unpacked beside its place and then renamed, so that what is in its place is complete.
	tmp, err := os.MkdirTemp(base, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := src.fetch(ctx, version, tmp); err != nil {
		return "", err
	}
	if !hasServer(filepath.Join(tmp, "unpacked", "bin")) {
		return "", errors.New("the archive has no initdb and postgres in bin")
	}
	if err := os.Rename(filepath.Join(tmp, "unpacked"), target); err != nil {
		return "", err
	}
	return bin, nil
}

// binaries returns the folder that keeps unpacked binaries.
func (src Source) binaries() (string, error) {
	as, err := account()
	if err != nil {
		return "", err
	}
	var dirs []string
	if src.Binaries != "" {
		dirs = append(dirs, src.Binaries)
	} else {
		if as != nil {
			dirs = append(dirs, "/var/cache/pgonce")
		} else if cache, err := os.UserCacheDir(); err == nil {
			dirs = append(dirs, filepath.Join(cache, "pgonce"))
		}
		dirs = append(dirs, filepath.Join(os.TempDir(), fmt.Sprintf("pgonce-%d", os.Geteuid())))
	}
	var errs []error
	for _, dir := range dirs {
		if dir, err = filepath.Abs(dir); err == nil {
			err = usable(dir, as)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// usable makes a folder for programs, and checks that nobody but this account could have put one there.
func usable(dir string, as *runAs) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() || !belongsToUs(fi) || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only this account can write to", dir)
	}
	if !as.reaches(dir) {
		return fmt.Errorf("%s cannot be reached by the account %s", dir, as)
	}
	return nil
}

// fetch downloads and unpacks the binaries into tmp/unpacked.
//
// embedded-postgres offers one call, Start, that downloads, unpacks, runs initdb and starts a server, the last two as
// our own account. For root that must fail, and for everybody it would be a server that is not stopped when we are
// killed. So Start is called to fail at initdb, by a locale that does not exist, and the binaries are used the way
// those of the machine are. That failure wraps the exit status of initdb, which no earlier one does: it says that
// everything was unpacked and that the programs run here.
func (src Source) fetch(ctx context.Context, version embeddedpostgres.PostgresVersion, tmp string) error {
	repository := cmp.Or(src.Repository, "https://repo1.maven.org/maven2")
	archives := src.Archives
	if archives == "" {
		if home, err := os.UserHomeDir(); err == nil {
			archives = filepath.Join(home, ".embedded-postgres-go")
		} else {
			archives = filepath.Join(tmp, "archives")
		}
	}
	if err := probe(ctx, repository, archives, version); err != nil {
		return err
	}
	// Start gives up when its port is taken, long before it would need it.
	port, err := freePort()
	if err != nil {
		return err
	}
	ep := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		BinaryRepositoryURL(repository).
		CachePath(archives).
		RuntimePath(filepath.Join(tmp, "run")).
		BinariesPath(filepath.Join(tmp, "unpacked")).
		Locale("none-so-that-initdb-fails").
		Logger(io.Discard))

	defer removeLogs(logs())
	failed := make(chan error, 1)
	go func() { failed <- ep.Start() }()
	select {
	case err = <-failed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err == nil {
		return errors.Join(errors.New("initdb took a locale that does not exist"), ep.Stop())
	}
	var initdb *exec.ExitError
	if !errors.As(err, &initdb) {
		return err
	}
	return nil
}

// logs lists the files that embedded-postgres writes the output of initdb to, and leaves behind.
func logs() []string {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	return paths
}

// removeLogs removes those that are new. One of another process may be among them, which then has one line less in an
// error.
func removeLogs(before []string) {
	for _, path := range logs() {
		if !slices.Contains(before, path) {
			os.Remove(path)
		}
	}
}

// probe makes sure that the repository answers, for embedded-postgres waits without a bound.
func probe(ctx context.Context, repository, archives string, version embeddedpostgres.PostgresVersion) error {
	kept, _ := filepath.Glob(filepath.Join(archives, fmt.Sprintf("embedded-postgres-binaries-*-%s.txz", version)))
	if len(kept) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, repository, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
