package nemesis

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/disk"
	"github.com/blackhole/blackhole/testnet/process"
)

// callLimit bounds one request for the state of the group.
const callLimit = 2 * time.Second

// peer is the place of one peer across its processes. Its addresses stay.
type peer struct {
	process.Place
	index int
	name  string
	disk  *disk.Disk // nil: the disk of this machine
	log   *os.File

	binary string // of its next process; empty means Config.Binary

	paused   bool         // written by disturb only
	troubled atomic.Bool  // under a fault
	healed   atomic.Int64 // when the last fault ended, since the start
}

// adapt prepares the next process of a peer.
func (r *run) adapt(p *peer, s *process.Spec) {
	s.Place, s.Log = p.Place, p.log
	if p.binary != "" {
		s.Binary = p.binary
	}
	if r.Stage != nil {
		r.Stage.Adapt(p.index, s)
	}
}

// options dial the API of the peer from its own host.
func (r *run) options(i int) []grpc.DialOption {
	dial := r.ground.Dial(i)
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })}
}

// client creates a client of a peer. It outlives the processes of the peer.
func (r *run) client(p *peer) (*operator.Client, error) {
	return operator.New(p.GRPC, operator.Dial(r.options(p.index)...))
}

// group asks every running peer for the state of the group and returns the answer with the latest
// term.
func (r *run) group(ctx context.Context) (latest coord.GroupState) {
	answers := make(chan coord.GroupState, len(r.peers))
	for i, p := range r.net.Peers {
		go func() { // ends within callLimit
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			defer cancel()
			var state coord.GroupState
			if p.Running() && !r.peers[i].paused {
				state, _ = p.Coordination().Group(ctx) // a missing answer is the zero state
			}
			answers <- state
		}()
	}
	for range r.peers {
		if s := <-answers; s.Leader != "" && s.Missing == "" && s.Term > latest.Term {
			latest = s
		}
	}
	r.report.noteTerm(latest.Term)
	return latest
}

// awaitGroup waits for a group with a leader and all its voters.
func (r *run) awaitGroup(ctx context.Context, limit time.Duration) error {
	return await.Until(ctx, limit, "the coordination group", func(ctx context.Context) error {
		if s := r.group(ctx); s.Leader == "" || len(s.Voters) != min(voters, r.Founders) {
			return fault.New("nemesis.awaitGroup", fault.Unavailable, "%d voters, leader %q, missing %q", len(s.Voters), s.Leader, s.Missing)
		}
		return nil
	})
}

// voters is the number of voters with enough founders.
const voters = 3

// index returns the index of a peer id, -1 for an unknown id.
func (r *run) index(id string) int {
	for i, p := range r.net.Peers {
		if p.ID.String() == id {
			return i
		}
	}
	return -1
}
