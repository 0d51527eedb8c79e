package access

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// pollEvery is the shortest time between two reads of files. A change applies to the next use after it.
const pollEvery = time.Second

// reloadable is a value parsed from files. A use reads the files again if the last read is older than
// pollEvery. Changes are detected by content, because the time stamp of a replaced file may be older.
// While the new content is invalid, such as a certificate before its key, the old value stays in use.
type reloadable[T any] struct {
	files []file
	parse func(contents [][]byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	current atomic.Pointer[T]

	mu      sync.Mutex // guards the fields below; a use that finds it locked takes the current value
	looked  time.Time
	applied [sha256.Size]byte // digest of the content of current
	refused [sha256.Size]byte // digest of the last invalid content, to log it once
}

// load reads the files for the first time.
func (l *reloadable[T]) load() error {
	contents, err := l.read()
	if err != nil {
		return err
	}
	v, err := l.parse(contents)
	if err != nil {
		return err
	}
	l.current.Store(&v)
	l.applied, l.looked = digest(contents), l.now()
	return nil
}

// get returns the current value.
func (l *reloadable[T]) get() *T {
	if len(l.files) > 0 && l.mu.TryLock() {
		l.poll()
		l.mu.Unlock()
	}
	return l.current.Load()
}

func (l *reloadable[T]) poll() {
	now := l.now()
	if since := now.Sub(l.looked); since >= 0 && since < pollEvery {
		return
	}
	l.looked = now
	contents, err := l.read()
	d := digest(contents)
	if err == nil && d == l.applied {
		return
	}
	var v T
	if err == nil {
		v, err = l.parse(contents)
	}
	switch {
	case err == nil:
		l.current.Store(&v)
		l.applied, l.refused = d, [sha256.Size]byte{}
		l.log.Info("reloaded the credentials", "files", l.paths())
	case d != l.refused:
		l.refused = d
		l.log.Warn("cannot reload the credentials: the old ones stay in use until the files are valid", "files", l.paths(), "err", err)
	}
}

func (l *reloadable[T]) read() ([][]byte, error) {
	contents := make([][]byte, 0, len(l.files))
	for _, f := range l.files {
		text, err := f.read()
		if err != nil {
			return nil, err
		}
		contents = append(contents, text)
	}
	return contents, nil
}

func (l *reloadable[T]) paths() []string {
	var paths []string
	for _, f := range l.files {
		paths = append(paths, f.path)
	}
	return paths
}

// digest hashes contents with their lengths.
func digest(contents [][]byte) (d [sha256.Size]byte) {
	h := sha256.New()
	for _, text := range contents {
		_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // a hash never fails
		_, _ = h.Write(text)
	}
	h.Sum(d[:0])
	return d
}
