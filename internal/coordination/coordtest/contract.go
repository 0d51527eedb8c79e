package coordtest

import (
	"context"
	"testing"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

// API is a form of the contract of package coord, in process or over a wire, over a group that
// nobody else uses.
type API struct {
	// Alice and Bob are two owners whom the group tells apart.
	Alice, Bob Owner
	coord.Reader
	coord.Admin

	// Internal executes the operations that applications cannot request: *coord.Configure, *coord.Compact.
	Internal func(ctx context.Context, op coord.Op) error
	// Pass lets so much time pass for the group, or a little more.
	Pass func(d time.Duration)
	// Halt takes from the group what it needs to serve, until resume is called; nil: not tested.
	Halt func() (resume func())
	// TTL of leases that are to end, and within which others do not; 0 is 10 s.
	TTL time.Duration
	// Progress is how long a watch waits for a mark; 0: not tested.
	Progress time.Duration
	// Directory is whether the form knows the directory and what is required of it; false: not tested.
	Directory bool
}

// Owner is a Writer on behalf of one owner. The connection or the command names the owner.
type Owner struct {
	Name string
	coord.Writer
}

// InProcess is a Solo as it is. For another form of it replace Alice, Bob, Reader and Admin.
func InProcess(s *Solo) API {
	return API{
		Alice: Owner{"alice", s}, Bob: Owner{"bob", s}, Reader: s, Admin: s,
		Internal: func(ctx context.Context, op coord.Op) error {
			_, _, err := s.Do(ctx, coord.Command{Op: op})
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

// Open gives a form of the contract over a fresh group; what it opens ends with the test.
type Open func(t testing.TB) API

// Run holds a form of the contract to what package coord promises. Errors are held to their kind
// and field. Of results it looks at what crosses every wire: a key, a token, whether it
// holds, the count; a lease and its time; a client; how much changed.
func Run(t *testing.T, open Open) {
	for name, test := range Cases(open) {
		t.Run(name, test)
	}
}

// Cases are the tests of Run by name, for who runs each in a bubble of virtual time.
func Cases(open Open) map[string]func(*testing.T) {
	all := map[string]func(*testing.T){}
	for _, part := range []map[string]func(*world){leases(), locks(), queues(), keys(), watches(), directories(), retries(), group()} {
		for name, test := range part {
			all[name] = func(t *testing.T) { test(newWorld(t, open(t))) }
		}
	}
	return all
}
