package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	serving = 60 * time.Second      // from a start to the first answer
	asking  = 50 * time.Millisecond // between two attempts
)

// members is the number of members; the first peers are the group.
const members = 3

// peer is a blackholed with its clients.
type peer struct {
	kit.Process
	*web
	name  string
	id    string
	ports []string // for HTTP, gRPC and peers
	rpc   *client.Client
}

// fleet is a set of connected peers.
type fleet struct {
	binary, dir string
	log         io.Writer
	size        int

	peers []*peer
}

// start starts the peers, and waits until they follow the directory.
func (f *fleet) start(ctx context.Context) error {
	free, err := kit.Ports(3 * f.size)
	if err != nil {
		return err
	}
	for i := range f.size {
		p := &peer{name: fmt.Sprint(i), web: newWeb("127.0.0.1:" + free[3*i]), ports: free[3*i : 3*i+3]}
		if p.rpc, err = client.New("127.0.0.1:" + free[3*i+1]); err != nil {
			return err
		}
		f.peers = append(f.peers, p)
		if err := f.house(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range f.peers {
		f.found(p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return f.ready(ctx)
}

// found sets the arguments of a peer. It joins through the last peer, which is no member.
func (f *fleet) found(p *peer) {
	p.Process = f.process(p, f.peers[f.size-1])
}

func (f *fleet) data(p *peer) string { return filepath.Join(f.dir, p.name) }

// house creates directory and identity of a peer.
func (f *fleet) house(ctx context.Context, p *peer) error {
	if err := os.MkdirAll(f.data(p), 0o700); err != nil {
		return fault.As("house", fault.Invalid, err)
	}
	id, err := exec.CommandContext(ctx, f.binary, "id", "--data", f.data(p)).Output()
	p.id = strings.TrimSpace(string(id))
	return fault.As("house", fault.Unavailable, err)
}

func (f *fleet) process(p, contact *peer) kit.Process {
	args := []string{
		"run", "--profile", "dev", "--data", f.data(p), "--http", "127.0.0.1:" + p.ports[0], "--grpc", "127.0.0.1:" + p.ports[1],
		"--listen", "/ip4/127.0.0.1/tcp/" + p.ports[2], "--dns", "off",
	}
	if p != contact {
		args = append(args, "--bootstrap", "/ip4/127.0.0.1/tcp/"+contact.ports[2]+"/p2p/"+contact.id)
	}
	env := []string{"BLACKHOLE_AGENT_REGISTRATIONS_PER_MINUTE=0", "BLACKHOLE_AGENT_LIMITS_INSTANCES=100000"}
	var founders []string
	for _, m := range f.peers[:members] {
		founders = append(founders, m.id)
	}
	env = append(env, "BLACKHOLE_COORDINATION_FOUNDERS="+strings.Join(founders, ","))
	return kit.Process{Binary: f.binary, Args: args, Env: env, Log: f.log}
}

// ready waits until all running peers have the whole directory.
func (f *fleet) ready(ctx context.Context) error {
	for _, p := range f.peers {
		err := kit.Until(ctx, serving, asking, "peer "+p.name+" follows", func(ctx context.Context) error {
			_, stale, err := p.count(ctx)
			if err == nil && stale {
				err = fault.New("ready", fault.Unavailable, "what it knows is old")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// spent returns the processor time of all peers, in steps of 10 ms; 0 on systems other than Linux.
func (f *fleet) spent() (sum time.Duration) {
	for _, p := range f.peers {
		sum += p.Spent()
	}
	return sum
}

// leader returns the leader according to a running member.
func (f *fleet) leader(ctx context.Context, witness *peer) (leader *peer, err error) {
	err = kit.Until(ctx, serving, asking, "a leader", func(ctx context.Context) error {
		g, err := witness.rpc.Coordination().Group(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(f.peers, func(p *peer) bool { return p.id == g.Leader })
		if at < 0 || len(g.Voters) != members {
			return fault.New("leader", fault.Unavailable, "leader %q, %d voters", g.Leader, len(g.Voters))
		}
		leader = f.peers[at]
		return nil
	})
	return leader, err
}

// followers returns the members except the leader.
func (f *fleet) followers(leader *peer) []*peer {
	return slices.DeleteFunc(slices.Clone(f.peers[:members]), func(p *peer) bool { return p == leader })
}

// stop ends the peers.
func (f *fleet) stop() {
	var all sync.WaitGroup
	for _, p := range f.peers {
		_ = p.rpc.Close() // no call is in flight
		p.close()
		all.Go(p.Stop)
	}
	all.Wait()
}
