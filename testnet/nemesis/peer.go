package nemesis

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/disk"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/process"
)

type dialOption = grpc.DialOption

// callLimit bounds one request for the state of the group.
const callLimit = 2 * time.Second

// peer is the place of one peer across its processes. Its addresses stay.
type peer struct {
	process.Place
	index int
	name  string
	host  *lan.Host  // nil means this machine
	disk  *disk.Disk // nil: the disk of this machine
	log   *os.File

	binary string // of its next process; empty means Config.Binary

	paused bool // written by disturb only
}

// place assigns host and addresses to peer i; free has the ports for peers on one machine.
func (r *run) place(i int, free []string) (p *peer, err error) {
	p = &peer{index: i, name: fmt.Sprintf("peer-%d", i+1)}
	if p.log, err = os.Create(filepath.Join(r.Dir, p.name+".log")); err != nil {
		return nil, fault.As("nemesis.place", fault.Unavailable, err)
	}
	if r.lan == nil {
		at := free[i*portsEach:]               // a restarted peer keeps its ports
		_, port, _ := net.SplitHostPort(at[0]) // FreePorts returns host:port
		p.Place = process.Place{Listen: "/ip4/127.0.0.1/tcp/" + port, HTTP: at[1], GRPC: at[2], DNS: at[3]}
		return p, nil
	}
	p.host = r.lan.Hosts[i]
	p.Place = process.Place{
		Listen: fmt.Sprintf("/ip4/%s/tcp/%d", p.host.IP, listenPort),
		HTTP:   fmt.Sprintf("127.0.0.1:%d", apiPort), GRPC: fmt.Sprintf("127.0.0.1:%d", apiPort+2), Within: p.host.Do,
	}
	return p, nil
}

// adapt prepares the next process of the peer.
func (p *peer) adapt(s *process.Spec) {
	s.Place, s.Log = p.Place, p.log
	if p.binary != "" {
		s.Binary = p.binary
	}
}

// options dial the API of the peer from its own host.
func (p *peer) options() []dialOption {
	if p.host == nil {
		return nil
	}
	return []dialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return p.host.Dial(ctx, address)
	})}
}

// client creates a client of the peer. It outlives the processes of the peer.
func (p *peer) client() (*client.Client, error) {
	return client.New(p.GRPC, p.options()...)
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
