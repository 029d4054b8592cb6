//go:build linux || darwin || freebsd

package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository serves one artifact for every platform, on loopback.
type repository struct {
	*httptest.Server
	jar       []byte
	sum       string
	downloads atomic.Int32
}

func newRepository(t *testing.T, files map[string][]byte) *repository {
	t.Helper()
	r := &repository{jar: makeJar(t, files)}
	sum := sha256.Sum256(r.jar)
	r.sum = hex.EncodeToString(sum[:])
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case strings.HasSuffix(req.URL.Path, ".jar.sha256"):
		w.Write([]byte(r.sum))
	case strings.HasPrefix(req.URL.Path, "/maven/io/zonky/test/postgres/") && strings.HasSuffix(req.URL.Path, ".jar"):
		r.downloads.Add(1)
		w.Write(r.jar)
	default:
		http.NotFound(w, req)
	}
}

func (r *repository) source(dir string) Source {
	return Source{
		Repository: r.URL + "/maven", Archives: filepath.Join(dir, "archives"),
		Binaries: filepath.Join(dir, "binaries"),
	}
}

// A machine without PostgreSQL: the binaries come from a repository and then run like any others, for root too.
func TestDownloadedServer(t *testing.T) {
	t.Parallel()
	machine, err := Find(t.Context())
	require.NoError(t, err, "this test needs binaries to put into its repository")
	files := make(map[string][]byte)
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		// The machine's own cannot be moved: they find their libraries relative to where they are.
		files["bin/"+name] = []byte("#!/bin/sh\nexec " + filepath.Join(machine, name) + ` "$@"`)
	}
	repo := newRepository(t, files)
	dir := testDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))

	bin, err := Download(t.Context(), repo.source(dir))
	require.NoError(t, err)
	s, err := Start(t.Context(), Config{BinDir: bin, TempDir: testDir(t), Settings: FastAndUnsafe()})
	require.NoError(t, err)
	defer s.Stop()
	require.Equal(t, 1, query[int](t, s.DSN("postgres"), `SELECT 1`))
}

// fakeBinaries are enough for a download: initdb refuses the locale, as the real one does.
func fakeBinaries() map[string][]byte {
	return map[string][]byte{
		"bin/postgres": []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 18.3'\n"),
		"bin/initdb":   []byte("#!/bin/sh\nexit 1\n"),
		"bin/pg_ctl":   []byte("#!/bin/sh\nexit 1\n"),
		"lib/libpq.so": bytes.Repeat([]byte("pq"), 100_000),
	}
}

func TestDownloadOnce(t *testing.T) {
	t.Parallel()
	repo := newRepository(t, fakeBinaries())
	dir := testDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	bins := make([]string, 3)
	var wg sync.WaitGroup
	for i := range bins {
		wg.Go(func() {
			var err error
			bins[i], err = Download(t.Context(), repo.source(dir))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, bins[0], bins[1])
	require.Equal(t, bins[0], bins[2])
	require.EqualValues(t, 1, repo.downloads.Load())
	lib, err := os.ReadFile(filepath.Join(bins[0], "../lib/libpq.so"))
	require.NoError(t, err)
	require.Equal(t, fakeBinaries()["lib/libpq.so"], lib)
	left, err := os.ReadDir(filepath.Join(dir, "binaries"))
	require.NoError(t, err)
	require.Len(t, left, 1, "no half-unpacked folder stays")

	// Later ones need no network, nor does unpacking again.
	repo.Close()
	again, err := Download(t.Context(), repo.source(dir))
	require.NoError(t, err)
	require.Equal(t, bins[0], again)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "binaries")))
	_, err = Download(t.Context(), repo.source(dir))
	require.NoError(t, err)
}

// embedded-postgres leaves a log in the temporary folder.
func TestDownloadLeavesNothing(t *testing.T) {
	tmp := testDir(t)
	t.Setenv("TMPDIR", tmp)
	dir := filepath.Join(tmp, "x")
	require.NoError(t, os.Mkdir(dir, 0o755))
	_, err := Download(t.Context(), newRepository(t, fakeBinaries()).source(dir))
	require.NoError(t, err)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestDownloadFails(t *testing.T) {
	t.Parallel()
	broken := fakeBinaries()
	broken["bin/initdb"] = []byte("not a program of this machine")
	incomplete := fakeBinaries()
	delete(incomplete, "bin/initdb")
	for name, tc := range map[string]struct {
		files  map[string][]byte
		change func(*repository)
	}{
		"not there":              {fakeBinaries(), func(r *repository) { r.Config.Handler = http.NotFoundHandler() }},
		"no repository":          {fakeBinaries(), func(r *repository) { r.Close() }},
		"checksum":               {fakeBinaries(), func(r *repository) { r.sum = strings.Repeat("0", 64) }},
		"cut off":                {fakeBinaries(), func(r *repository) { r.jar, r.sum = r.jar[:len(r.jar)/2], "" }},
		"for another machine":    {broken, func(*repository) {}},
		"without what is needed": {incomplete, func(*repository) {}},
		"others may write there": {fakeBinaries(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := newRepository(t, tc.files)
			dir := testDir(t)
			require.NoError(t, os.Chmod(dir, 0o755))
			src := repo.source(dir)
			if tc.change == nil {
				require.NoError(t, os.Mkdir(src.Binaries, 0o755))
				require.NoError(t, os.Chmod(src.Binaries, 0o777))
			} else {
				tc.change(repo)
			}
			_, err := Download(t.Context(), src)
			require.Error(t, err)
			left, err := filepath.Glob(filepath.Join(src.Binaries, "*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// makeJar makes an artifact as the repository has them: a zip file with a .txz file.
func makeJar(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var tarball bytes.Buffer
	tw := tar.NewWriter(&tarball)
	for name, content := range files {
		require.NoError(t, tw.WriteHeader(&tar.Header{
			Name: name, Mode: 0o755, Size: int64(len(content)),
			Typeflag: tar.TypeReg,
		}))
		_, err := tw.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, tw.Close())
	var jar bytes.Buffer
	zw := zip.NewWriter(&jar)
	w, err := zw.Create("postgres-any.txz")
	require.NoError(t, err)
	_, err = w.Write(xzStored(tarball.Bytes()))
	require.NoError(t, err)
	require.NoError(t, zw.Close())
	return jar.Bytes()
}

// xzStored makes an xz file without compressing: a stream of one block of stored LZMA2 chunks.
func xzStored(data []byte) []byte {
	sum := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte {
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	flags := []byte{0, 1} // CRC-32
	out := append([]byte{0xFD, '7', 'z', 'X', 'Z', 0}, flags...)
	out = append(out, sum(flags)...)

	header := []byte{2, 0, 0x21, 1, 22, 0, 0, 0} // 12 bytes in all, one filter, LZMA2 with its dictionary size, padding
	block := append(header, sum(header)...)
	control := byte(1) // a stored chunk that starts a dictionary; 2 is one that goes on
	for rest := data; len(rest) > 0; control = 2 {
		n := min(len(rest), 1<<16)
		block = append(block, control, byte((n-1)>>8), byte(n-1))
		block, rest = append(block, rest[:n]...), rest[n:]
	}
	block = append(block, 0)
	unpadded := len(block) + 4
	out = append(out, pad(block)...)
	out = append(out, sum(data)...)

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(unpadded))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = append(index, sum(index)...)
	out = append(out, index...)

	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, flags...)
	out = append(out, sum(footer)...)
	return append(append(out, footer...), 'Y', 'Z')
}
