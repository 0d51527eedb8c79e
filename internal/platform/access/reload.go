package access

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// pollEvery is how often files are looked at, at most: a change applies to the first use after it.
const pollEvery = time.Second

// reloadable is what some files say, kept up with them: a use reads them again when the last look
// is a second past. It goes by content and not by time stamps, which replaced files need not
// move forward. While the new content does not parse, as of a certificate whose key is not
// there yet, the old goes on to apply.
type reloadable[T any] struct {
	files []file
	parse func(contents [][]byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	current atomic.Pointer[T]

	mu      sync.Mutex // guards what follows; whoever does not get it at once uses what there is
	looked  time.Time
	applied [sha256.Size]byte // digest of the content of current
	refused [sha256.Size]byte // of the content last refused, which is logged once
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

// get gives what the files say.
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
		l.log.Info("credentials reloaded", "files", l.paths())
	case d != l.refused:
		l.refused = d
		l.log.Warn("credentials cannot be reloaded, the old ones go on to apply", "files", l.paths(), "err", err)
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

// digest tells contents apart, the borders between them included.
func digest(contents [][]byte) (d [sha256.Size]byte) {
	h := sha256.New()
	for _, text := range contents {
		_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // a hash takes everything
		_, _ = h.Write(text)
	}
	h.Sum(d[:0])
	return d
}
