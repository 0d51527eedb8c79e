package coordtest

import (
	"context"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

// API is an implementation of package coord's contract, in process or over a wire, on a group of its
// own.
type API struct {
	// Alice and Bob are two different owners.
	Alice, Bob Owner
	ops.Ops
	coord.Admin

	// Internal executes the operations that applications cannot request: *ops.Configure, *ops.Compact.
	Internal func(ctx context.Context, op ops.Op) error
	// Pass lets so much time pass for the group, or a little more.
	Pass func(d time.Duration)
	// Halt stops the group's service until resume; nil skips the test.
	Halt func() (resume func())
	// TTL of leases that end in a test; other leases outlive it. 0 means 10 s.
	TTL time.Duration
	// Progress is the time until a watch's progress mark; 0 skips the test.
	Progress time.Duration
	// Directory includes the tests of directory and requirements.
	Directory bool
}

// Owner calls on behalf of one owner. The connection or the command names the owner.
type Owner struct {
	Name string
	ops.Ops
}

// InProcess returns the API of a Solo. Replace Alice, Bob, Ops and Admin for other implementations.
func InProcess(s *Solo) API {
	return API{
		Alice: Owner{"alice", ops.Of(s)}, Bob: Owner{"bob", ops.Of(s)}, Ops: ops.Of(s), Admin: s,
		Internal: func(ctx context.Context, op ops.Op) error {
			_, _, err := ops.Of(s).Do(ctx, ops.Command{Op: op})
			return err
		},
		Pass: s.Advance,
		Halt: func() func() {
			s.Halt("no majority")
			return s.Resume
		},
		Progress: Progress,
	}
}

// Open returns an implementation on a fresh group; the test's end closes it.
type Open func(t testing.TB) API

// Run tests an implementation of the contract. It compares kind and field of errors, and the parts of
// results that cross every wire: key, token, granted and count; lease and TTL; client; changed.
func Run(t *testing.T, open Open) {
	for name, test := range Cases(open) {
		t.Run(name, test)
	}
}

// Cases returns the tests of Run by name, for callers that run each in virtual time.
func Cases(open Open) map[string]func(*testing.T) {
	all := map[string]func(*testing.T){}
	for _, part := range []map[string]func(*fixture){leases(), locks(), queues(), keys(), watches(), directories(), retries(), group()} {
		for name, test := range part {
			all[name] = func(t *testing.T) { test(newWorld(t, open(t))) }
		}
	}
	return all
}
