package fence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// head and version begin the file of a token.
const (
	head    = "fencing token, format "
	version = 1
)

// File is a file that refuses replacements with a stale token. NAME.fence beside it stores the
// greatest token after a line with the version, and survives crashes. NAME.lock separates processes on one machine (flock; on a
// network file system, as far as that supports it). File is safe for concurrent use.
type File struct {
	path string
	mu   sync.Mutex // flock separates processes, mu separates goroutines
}

// NewFile guards the file at path. The file need not exist.
func NewFile(path string) *File { return &File{path: path} }

// Write replaces the file in one step: readers see the old content or all of data.
//
// Errors: Invalid for a missing token; Conflict for a stale token; Unsupported for a token file of a later
// version; Internal for the file system.
func (f *File) Write(token Token, data []byte, perm fs.FileMode) error {
	return fault.Wrap("fence.Write", f.Do(token, func() error { return replace(f.path, data, perm) }))
}

// Do implements Guarded for any write of the caller, to this file or to others. A new token is on
// disk before write runs.
func (f *File) Do(token Token, write func() error) error {
	const op = "fence.Do"
	f.mu.Lock()
	defer f.mu.Unlock()
	unlock, err := lock(f.path + ".lock")
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	defer unlock()
	fence, err := f.read()
	if err != nil {
		return fault.Wrap(op, err)
	}
	before := fence.Highest
	if err := fence.Check(coord.Token(token)); err != nil {
		return fault.Wrap(op, err)
	}
	if fence.Highest != before {
		text := fmt.Sprintf("%s%d\n%d\n", head, version, fence.Highest)
		if err := replace(f.path+".fence", []byte(text), 0o644); err != nil {
			return fault.As(op, fault.Internal, err)
		}
	}
	return fault.Wrap(op, write())
}

// Highest returns the greatest token seen, or 0 for none.
func (f *File) Highest() (Token, error) {
	fence, err := f.read()
	return Token(fence.Highest), fault.Wrap("fence.Highest", err)
}

func (f *File) read() (coord.Fence, error) {
	text, err := os.ReadFile(f.path + ".fence")
	if errors.Is(err, fs.ErrNotExist) {
		return coord.Fence{}, nil
	}
	if err != nil {
		return coord.Fence{}, fault.As("", fault.Internal, err)
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	digits, named := strings.CutPrefix(first, head)
	is, err := strconv.ParseUint(digits, 10, 32)
	if named && err == nil && is > version {
		return coord.Fence{}, fault.New("", fault.Unsupported, "the fencing token in %s.fence has format %d, this program reads formats 1 to %d: run the later program again",
			f.path, is, version)
	}
	token, wrong := strconv.ParseInt(strings.TrimSuffix(rest, "\n"), 10, 64)
	if !named || err != nil || is != version || wrong != nil || token <= 0 {
		return coord.Fence{}, fault.New("", fault.Internal, "%s.fence holds no token", f.path)
	}
	return coord.Fence{Highest: coord.Token(token)}, nil
}

// replace writes a new file, syncs it to disk and renames it.
func replace(path string, data []byte, perm fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(perm), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir) // otherwise a crash may lose the name
}
