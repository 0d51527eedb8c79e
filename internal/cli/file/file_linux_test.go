package file

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

const content = "the whole content"

func whole(w io.Writer) error { _, err := io.WriteString(w, content); return err }

// TestWriteKeepsWhatAFileIs writes to each kind of file. Kind, mode and device number are the same afterwards.
func TestWriteKeepsWhatAFileIs(t *testing.T) {
	node := func(mode uint32, minor int) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := syscall.Mknod(path, mode|0o644, 1<<8|minor); errors.Is(err, syscall.EPERM) {
				t.Skip("only root makes devices")
			} else {
				require.NoError(t, err)
			}
		}
	}
	regular := func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("before"), 0o600)) }
	for name, c := range map[string]struct {
		make    func(t *testing.T, path string)
		read    string // the file with the content afterwards, "" for none
		refused string
	}{
		"new":       {func(*testing.T, string) {}, "x", ""},
		"regular":   {regular, "x", ""},
		"null":      {node(syscall.S_IFCHR, 3), "", ""},
		"full":      {node(syscall.S_IFCHR, 7), "", "no space left on device"},
		"directory": {func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, "", "is a directory"},
		"socket":    {node(syscall.S_IFSOCK, 0), "", "no such device or address"},
		"link": {func(t *testing.T, path string) {
			regular(t, filepath.Join(filepath.Dir(path), "target"))
			require.NoError(t, os.Symlink("target", path))
		}, "target", ""},
		"link to nothing": {func(t *testing.T, path string) { require.NoError(t, os.Symlink("nowhere", path)) }, "", "is a link to nothing"},
		"link to a device": {func(t *testing.T, path string) {
			node(syscall.S_IFCHR, 3)(t, filepath.Join(filepath.Dir(path), "null"))
			require.NoError(t, os.Symlink("null", path))
		}, "", ""},
		"unknown folder": {func(t *testing.T, path string) { require.NoError(t, os.Symlink("nowhere/x", path)) }, "", "is a link to nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "x")
			c.make(t, path)
			before, existed := os.Lstat(path)
			size, err := Write(&term.Console{}, path, whole)
			if c.refused != "" {
				require.ErrorContains(t, err, c.refused)
			} else {
				require.NoError(t, err)
				require.EqualValues(t, len(content), size)
			}
			if existed == nil {
				after, err := os.Lstat(path)
				require.NoError(t, err)
				require.Equal(t, before.Mode(), after.Mode())
				require.Equal(t, before.Sys().(*syscall.Stat_t).Rdev, after.Sys().(*syscall.Stat_t).Rdev)
			}
			if c.read != "" {
				text, err := os.ReadFile(filepath.Join(dir, c.read))
				require.NoError(t, err)
				require.Equal(t, content, string(text))
			}
			withoutPartial(t, dir)
		})
	}
}

func withoutPartial(t *testing.T, dir string) {
	parts, err := filepath.Glob(filepath.Join(dir, "*.partial"))
	require.NoError(t, err)
	require.Empty(t, parts)
}

// TestWriteIntoAPipe: the reader gets all, and the pipe stays.
func TestWriteIntoAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	read := make(chan string)
	go func() {
		text, err := os.ReadFile(path)
		read <- string(text) + fault.Message(err)
	}()
	_, err := Write(&term.Console{}, path, whole)
	require.NoError(t, err)
	require.Equal(t, content, <-read)
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())
}

// TestWriteFails: a failed writer leaves the file as it was, and two writers do not meet.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	_, err := Write(&term.Console{}, path, func(w io.Writer) error {
		_, err := Write(&term.Console{}, path, whole)
		return errors.Join(err, whole(w), errors.New("the peer has gone"))
	})
	require.ErrorContains(t, err, "the peer has gone")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(text))
	withoutPartial(t, dir)
}

// TestStandardStreams: "-" is standard output or input, but no terminal.
func TestStandardStreams(t *testing.T) {
	var out bytes.Buffer
	con := &term.Console{Stdin: strings.NewReader(content), Stdout: &out}
	_, err := Write(con, "-", whole)
	require.NoError(t, err)
	require.Equal(t, content, out.String())
	in, err := Open(con, "FILE", "-")
	require.NoError(t, err)
	text, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, content, string(text))
	con.Terminal.Size = func() (int, int) { return 80, 24 }
	_, err = Write(con, "-", whole)
	require.Equal(t, "FILE", fault.FieldOf(err))
	require.NoFileExists(t, "-")
}
