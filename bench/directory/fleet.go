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

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// members is the number of members; the first peers are the group.
const members = 3

// peer is a blackholed with its clients.
type peer struct {
	process
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
	alone       bool // no peer belongs to a group

	peers []*peer
}

// start starts the peers, and waits until they follow the directory.
func (f *fleet) start(ctx context.Context) error {
	free, err := child.Ports(3 * f.size)
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
	p.process = f.process(p, f.peers[f.size-1])
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

func (f *fleet) process(p, contact *peer) process {
	args := []string{
		"run", "--profile", "dev", "--data", f.data(p), "--http", "127.0.0.1:" + p.ports[0], "--grpc", "127.0.0.1:" + p.ports[1],
		"--listen", "/ip4/127.0.0.1/tcp/" + p.ports[2], "--dns", "off",
	}
	if p != contact {
		args = append(args, "--bootstrap", "/ip4/127.0.0.1/tcp/"+contact.ports[2]+"/p2p/"+contact.id)
	}
	env := []string{"BLACKHOLE_AGENT_REGISTRATIONS_PER_MINUTE=0", "BLACKHOLE_AGENT_LIMITS_INSTANCES=100000"}
	if f.alone {
		env = append(env, "BLACKHOLE_COORDINATION_ENABLED=false")
	} else {
		var founders []string
		for _, m := range f.peers[:members] {
			founders = append(founders, m.id)
		}
		env = append(env, "BLACKHOLE_COORDINATION_FOUNDERS="+strings.Join(founders, ","))
	}
	return process{child.Process{Binary: f.binary, Args: args, Env: env, Log: f.log}}
}

// ready waits until all running peers have the whole directory.
func (f *fleet) ready(ctx context.Context) error {
	for _, p := range f.living() {
		err := child.Until(ctx, serving, asking, "peer "+p.name+" follows", func(ctx context.Context) error {
			_, stale, err := p.count(ctx)
			if err == nil && stale && !f.alone {
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

// seen waits until peers have n instances, with fresh answers.
func (f *fleet) seen(ctx context.Context, n int, at ...*peer) error {
	for _, p := range at {
		if err := p.sees(ctx, n, func() {}); err != nil {
			return err
		}
	}
	return nil
}

// sees waits until the peer has n instances, with fresh answers. It calls follows at the start of
// the watch.
func (p *peer) sees(ctx context.Context, n int, follows func()) error {
	follows = sync.OnceFunc(follows)
	return child.Until(ctx, serving, tight, "peer "+p.name+" sees all", func(ctx context.Context) error {
		got, stale, err := p.count(ctx)
		if err == nil && !stale {
			follows()
		}
		if err == nil && (got != n || stale) {
			err = fault.New("sees", fault.Unavailable, "it sees %d of %d, stale: %v", got, n, stale)
		}
		return err
	})
}

func (f *fleet) living() []*peer {
	return slices.DeleteFunc(slices.Clone(f.peers), func(p *peer) bool { return !p.Runs() })
}

// processes returns all running processes.
func (f *fleet) processes() []*process {
	var all []*process
	for _, p := range f.living() {
		all = append(all, &p.process)
	}
	return all
}

// leader returns the leader according to a running member.
func (f *fleet) leader(ctx context.Context, witness *peer) (leader *peer, err error) {
	err = child.Until(ctx, serving, asking, "a leader", func(ctx context.Context) error {
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

// halt ends the peers; they can start again.
func (f *fleet) halt() {
	var all sync.WaitGroup
	for _, p := range f.peers {
		all.Go(p.process.stop)
	}
	all.Wait()
}

func (f *fleet) stop() {
	for _, p := range f.peers {
		_ = p.rpc.Close() // no call is in flight
		p.close()
	}
	f.halt()
}
