//go:build lab

package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// clockFile, in the data directory, has the offset of this peer's clock as a Go duration.
const clockFile = "clock-offset"

// clockAge is the longest time until a change of the file takes effect.
const clockAge = 20 * time.Millisecond

// newClock returns a clock with the offset in clockFile, so that tests of networks can set the clock of one peer.
// The file may change at any time. Without a valid file the clock is correct.
func newClock(data string) func() time.Time {
	c := &wrongClock{path: filepath.Join(data, clockFile), began: time.Now()}
	return c.now
}

// resolverFile, in the data directory, has the address of a DNS server.
const resolverFile = "resolver"

// newResolver returns the resolver of the names in offers. It asks the server in resolverFile instead of the machine's, so that tests of
// networks have domains.
func newResolver(data string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if text, err := os.ReadFile(filepath.Join(data, resolverFile)); err == nil {
			address = strings.TrimSpace(string(text))
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

// wrongClock is the clock of a peer in a test.
type wrongClock struct {
	path   string
	began  time.Time
	read   atomic.Int64 // time of the last read of the file, since began
	offset atomic.Int64
}

func (c *wrongClock) now() time.Time {
	now := time.Now()
	if since := now.Sub(c.began); c.read.Load() == 0 || since-time.Duration(c.read.Load()) > clockAge {
		c.read.Store(max(int64(since), 1))
		text, err := os.ReadFile(c.path)
		offset, invalid := time.ParseDuration(strings.TrimSpace(string(text)))
		if err == nil && invalid == nil {
			c.offset.Store(int64(offset))
		}
	}
	return shift(now, time.Duration(c.offset.Load()))
}

// shift moves the wall clock of a time and keeps its monotonic clock, like a suspended machine. Time.Add moves
// both. The layout of time.Time is that of package time: 1 bit "has a monotonic clock",
// 33 bits of seconds since 1885 and 30 bits of nanoseconds.
func shift(t time.Time, d time.Duration) time.Time {
	const nanoseconds = 30
	moved := t.Add(d).Round(0)
	wall := (*uint64)(unsafe.Pointer(&t))
	seconds := int64(*wall<<1>>(nanoseconds+1)) + moved.Unix() - t.Unix()
	*wall = 1<<63 | uint64(seconds)<<nanoseconds | uint64(moved.Nanosecond())
	return t
}
