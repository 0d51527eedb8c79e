package process

import (
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// SetClock sets the offset of the clock of a peer, by its data directory, also while it runs.
func SetClock(data string, offset time.Duration) error {
	return fault.As("process.SetClock", fault.Unavailable, put(data, "clock-offset", offset.String()))
}

// SetResolver sets the DNS server of a peer for the names in offers, host:port, also while it runs.
func SetResolver(data, address string) error {
	return fault.As("process.SetResolver", fault.Unavailable, put(data, "resolver", address))
}

// put writes a file of a data directory. The peer reads the whole file or the old one.
func put(data, name, text string) error {
	path := filepath.Join(data, name)
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
