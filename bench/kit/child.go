// Package kit is what the measuring programs share: flags and parts, processes, readiness, processor time, figures.
package kit

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// once bounds one attempt of Until.
const once = 2 * time.Second

// Spent returns the processor time of a process, user and system, in steps of 10 ms; 0 after its
// end, and on systems other than Linux.
func Spent(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64) // 0 for an invalid number
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Ports returns free ports of loopback. Errors: Unavailable.
func Ports(n int) ([]string, error) {
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fault.As("kit.Ports", fault.Unavailable, err)
		}
		defer l.Close() // held until all ports are found
		all = append(all, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return all, nil
}

// Until calls ask until it returns nil, at most 2 s for each call. Errors: Timeout, with the last
// error of ask.
func Until(ctx context.Context, limit, every time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		bounded, done := context.WithTimeout(ctx, once)
		err := ask(bounded)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New("kit.Until", fault.Timeout, "%s: not within %v: %w", what, limit, err)
		}
	}
}

// Rest sleeps. Errors: Timeout, Canceled.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("kit.Rest", ctx.Err())
	}
}
