//go:build linux || darwin || freebsd

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// runAs is the account that PostgreSQL's programs run as; nil is our own. PostgreSQL refuses to run as root.
type runAs struct {
	name     string
	uid, gid uint32
}

// account finds the account: our own, and for root the one that PostgreSQL's packages make, else the one that every
// system has.
func account() (*runAs, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var errs []error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			errs = append(errs, err)
			continue
		}
		return &runAs{name, uint32(uid), uint32(gid)}, nil
	}
	return nil, fmt.Errorf("pgserver: PostgreSQL does not run as root, and there is no other account: %w",
		errors.Join(errs...))
}

// credential is for [syscall.SysProcAttr]. Root's other groups are given up too.
func (as *runAs) credential() *syscall.Credential {
	if as == nil {
		return nil
	}
	return &syscall.Credential{Uid: as.uid, Gid: as.gid}
}

// own gives a file to the account.
func (as *runAs) own(path string) error {
	if as == nil {
		return nil
	}
	return os.Lchown(path, int(as.uid), int(as.gid))
}

// reaches says whether the account can enter a folder, judged by the permissions for everybody on the way.
func (as *runAs) reaches(dir string) bool {
	if as == nil {
		return true
	}
	for {
		fi, err := os.Stat(dir)
		if err != nil || fi.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// tempDir returns where to make the server's folder, without symbolic links in it.
func tempDir(want string, as *runAs) (string, error) {
	dirs := []string{want}
	if want == "" {
		dirs = []string{os.TempDir()}
	}
	for _, dir := range append(dirs, "/tmp") {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		if dir, err = filepath.EvalSymlinks(dir); err == nil && as.reaches(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("pgserver: no temporary folder that the account %s can enter: tried %q", as,
		append(dirs, "/tmp"))
}

func (as *runAs) String() string {
	if as == nil {
		return "of this process"
	}
	return as.name
}

// belongsToUs says whether a file belongs to this process's account.
func belongsToUs(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// hasOneName says whether a file has no second name: a link to a file of ours can be made in a folder of somebody
// else's.
func hasOneName(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 1
}
