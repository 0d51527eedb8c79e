package process

import (
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// SetClock sets the offset of the clock of a peer, by its data directory, also while it runs.
func SetClock(data string, offset time.Duration) error {
	path := filepath.Join(data, "clock-offset")
	next := path + ".next" // the peer reads the whole file or the old one
	if err := os.WriteFile(next, []byte(offset.String()), 0o600); err != nil {
		return fault.As("process.SetClock", fault.Unavailable, err)
	}
	return fault.As("process.SetClock", fault.Unavailable, os.Rename(next, path))
}
