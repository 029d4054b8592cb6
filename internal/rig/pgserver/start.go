//go:build linux || darwin || freebsd

package pgserver

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// create runs initdb and writes the settings.
func (s *Server) create(ctx context.Context, settings map[string]string) error {
	// A password, not trust: every account of the machine can connect to a loopback port, and this server's
	// superuser can run programs (COPY ... TO PROGRAM) as the account that started it. SCRAM, because every
	// driver has it and md5 is on its way out.
	pwfile := filepath.Join(s.folder.path, "password")
	secret, err := verifier(s.password)
	if err != nil {
		return fmt.Errorf("pgserver: make the password's verifier: %w", err)
	}
	if err := errors.Join(s.folder.create("password", secret+"\n"), s.folder.as.own(pwfile)); err != nil {
		return fmt.Errorf("pgserver: write password: %w", err)
	}
	defer os.Remove(pwfile)

	p, err := s.folder.spawn(nil, filepath.Join(s.bin, "initdb"),
		"--pgdata="+s.folder.data(), "--username="+userName, "--pwfile="+pwfile, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err != nil {
		return fmt.Errorf("pgserver: run initdb: %w", err)
	}
	defer p.release()
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("pgserver: initdb: %w", errors.Join(ctx.Err(), p.killTree()))
	}
	if p.err != nil {
		return fmt.Errorf("pgserver: initdb failed: %w\n%s", p.err, s.logTail())
	}

	// In the file and not on the command line, where ALTER SYSTEM could not change them.
	var conf strings.Builder
	conf.WriteString("\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n")
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(value))
	}
	if err := appendFile(filepath.Join(s.folder.data(), "postgresql.conf"), conf.String()); err != nil {
		return fmt.Errorf("pgserver: write settings: %w", err)
	}
	return nil
}

// verifier returns what the server stores of a password (RFC 5803), and takes in place of one. The usual 4096
// iterations make it slow to guess a password that somebody thought of. Ours are random, of 128 bits, and need none;
// lib/pq takes no count of fewer than four digits. It makes every connection of every test 2 ms faster, with the race
// detector 24 ms.
func verifier(password string) (string, error) {
	const iterations = 1000
	salt := []byte(rand.Text())[:16]
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, b64(salt), b64(stored[:]), b64(mac("Server Key"))), nil
}

// runOnFreePort starts the server on a port that pick found free a moment ago, and on another one when somebody else
// was quicker.
func (s *Server) runOnFreePort(ctx context.Context, pick func() (int, error)) error {
	for try := 1; ; try++ {
		port, err := pick()
		if err != nil {
			return fmt.Errorf("pgserver: find a free port: %w", err)
		}
		s.port = port
		err = s.run(ctx)
		if err == nil || ctx.Err() != nil || try == 5 || portIsFree(port) {
			return err
		}
	}
}

// run starts the server on s.port and waits until it takes connections.
func (s *Server) run(ctx context.Context) error {
	var door *door
	if s.shared {
		var err error
		if door, err = s.folder.makeDoor(); err != nil {
			return fmt.Errorf("pgserver: make a named pipe: %w", err)
		}
	}
	p, err := s.folder.spawn(door, filepath.Join(s.bin, "postgres"), "-D", s.folder.data(), "-p", strconv.Itoa(s.port))
	if err != nil {
		return fmt.Errorf("pgserver: run postgres: %w", err)
	}
	s.proc = p
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.folder.ready(p.pid) {
		select {
		case <-tick.C:
		case <-p.done:
			p.release()
			s.proc = nil
			return fmt.Errorf("pgserver: postgres ended at its start: %w\n%s", p.err, s.logTail())
		case <-ctx.Done():
			err := errors.Join(ctx.Err(), s.kill())
			return fmt.Errorf("pgserver: wait for postgres: %w\n%s", err, s.logTail())
		}
	}
	return nil
}

// freePort returns a port of 127.0.0.1 that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func portIsFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// logTail returns the last lines of the log, for an error.
func (s *Server) logTail() string {
	b, err := os.ReadFile(s.LogFile())
	if err != nil {
		return ""
	}
	const most = 4096
	return strings.TrimSpace(string(b[max(0, len(b)-most):]))
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
