// Package network starts a local network of real peers: one process each, on loopback,
// the first of them the bootstrap of the others.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	launchLimit  = 2 * time.Minute  // from a process's start to its first answer
	readyLimit   = 5 * time.Minute  // from all processes' start until all know each other
	callLimit    = 10 * time.Second // of one question about a peer's status
	launchTrials = 3                // when another process took a port
	atOnce       = 4                // processes launched at the same time
	enough       = 20               // peers that a peer of a large network must know: k of Kademlia
)

// Config describes the network.
type Config struct {
	Peers  int
	Binary string        // blackholed
	Dir    string        // gets one data directory for each peer
	Check  time.Duration // how often a peer checks a provider

	Founders int           // peers, the first ones, that found one coordination group; 0: each founds its own
	Replace  time.Duration // silence after which a voter of it is replaced; 0: as usual

	Adapt func(i int, s *process.Spec)  // changes how peer i is started; nil: nothing
	Dial  func(i int) []grpc.DialOption // how clients reach its API; nil: as usual

	Log  io.Writer // gets the peers' logs; nil: nobody
	Keep bool      // the data directories stay when the network stops
}

// Network is a running network. Stop must be called.
type Network struct {
	Peers []*Peer // peers[0] is the bootstrap

	config   Config
	dirs     []string // of the peers, as far as they were made
	founders []string // peer ids
}

// Peer is one process of the network, and a client of it.
type Peer struct {
	*client.Client
	*process.Process
	Name   string
	ID     peer.ID
	Listen []string // multiaddrs
	Data   string
	Idle   uint64 // bytes resident when the network was ready and empty

	ended bool // by us; only Kill and Stop write it
}

// Start starts the peers and waits until they are ready and know each other. It fails
// with the last words of the peer that failed, and then nothing runs any more.
func Start(ctx context.Context, c Config) (*Network, error) {
	n := &Network{config: c, Peers: make([]*Peer, c.Peers), dirs: make([]string, c.Peers)}
	if err := n.start(ctx); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

func (n *Network) start(ctx context.Context) error {
	for i := range n.Peers {
		if err := n.house(ctx, i); err != nil {
			return err
		}
	}
	if err := n.launch(ctx, 0, nil); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := 1; i < len(n.Peers); i++ {
		group.Go(func() error { return n.launch(groupCtx, i, n.Peers[0].Listen) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	for _, p := range n.Peers {
		p.Idle = p.Resident()
	}
	return nil
}

// house makes the data directory of peer i, and its identity if it is a founder.
func (n *Network) house(ctx context.Context, i int) error {
	data := filepath.Join(n.config.Dir, nameOf(i))
	if err := os.Mkdir(data, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fault.Invalidf("data", data, "there is a peer of an earlier run: choose another directory, or remove %s", data)
		}
		return fault.As("network.house", fault.Invalid, err)
	}
	n.dirs[i] = data
	if i >= n.config.Founders {
		return nil
	}
	id, err := process.Identity(ctx, n.config.Binary, data)
	if err != nil {
		return err
	}
	n.founders = append(n.founders, id)
	return nil
}

func nameOf(i int) string { return fmt.Sprintf("peer-%d", i+1) }

// launch starts peer i and waits until it tells its addresses.
func (n *Network) launch(ctx context.Context, i int, bootstrap []string) error {
	c := n.config
	spec := process.Spec{
		Name: nameOf(i), Binary: c.Binary, Data: n.dirs[i], Bootstrap: bootstrap, Check: c.Check,
		Founders: n.founders, Replace: c.Replace, Log: c.Log,
	}
	if c.Adapt != nil {
		c.Adapt(i, &spec)
	}
	var options []grpc.DialOption
	if c.Dial != nil {
		options = c.Dial(i)
	}
	for trial := 1; ; trial++ {
		p, err := start(spec, options)
		if err != nil {
			return err
		}
		n.Peers[i] = p
		err = p.awaitAddress(ctx)
		if err == nil || trial == launchTrials || !p.Clashed() {
			return err
		}
		p.stop()
	}
}

// Restart starts a peer that was killed, on its data, with new ports; the rest of the network
// tells it what it missed. It fails with the last words of the peer.
func (n *Network) Restart(ctx context.Context, p *Peer) error {
	var bootstrap []string
	for _, other := range n.Living() {
		bootstrap = append(bootstrap, other.Listen...)
	}
	_ = p.Close() // nothing answers it any more
	return n.launch(ctx, slices.Index(n.Peers, p), bootstrap)
}

// start starts a process and makes a client of it; a process that cannot have one is stopped.
func start(spec process.Spec, options []grpc.DialOption) (*Peer, error) {
	proc, err := process.Start(spec)
	if err != nil {
		return nil, err
	}
	c, err := client.New(proc.GRPC, options...)
	if err != nil {
		proc.Kill()
		return nil, err
	}
	return &Peer{Client: c, Process: proc, Name: spec.Name, Data: spec.Data}, nil
}

func (p *Peer) awaitAddress(ctx context.Context) error {
	return await.Until(ctx, launchLimit, p.Name+" answers", func(ctx context.Context) error {
		s, err := p.Look(ctx)
		if err != nil {
			return p.excuse(err)
		}
		if p.ID, err = peer.Decode(s.PeerID); err != nil {
			return await.Never(fault.As("network.launch", fault.Internal, err))
		}
		p.Listen = s.Listen
		return nil
	})
}

// awaitReady waits until every peer is ready and knows every other.
func (n *Network) awaitReady(ctx context.Context) error {
	limit := time.Now().Add(readyLimit)
	for _, p := range n.Peers {
		err := await.Until(ctx, time.Until(limit), p.Name+" knows all peers", func(ctx context.Context) error {
			v, err := p.Look(ctx)
			switch others := min(len(n.Peers)-1, enough); {
			case err != nil:
				return p.excuse(err)
			case !v.Ready:
				return fault.New("network.Ready", fault.Unavailable, "not ready; %w", p.Failure())
			case max(v.Known, v.Connected) < others:
				return fault.New("network.Ready", fault.Unavailable, "knows %d of %d; %w", v.Known, others, p.Failure())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// excuse makes an error final when the peer's process is gone.
func (p *Peer) excuse(err error) error {
	if p.Running() {
		return fault.New("network.Start", fault.Unavailable, "%w; %w", err, p.Failure())
	}
	return await.Never(p.Failure())
}

// View is what a peer says of itself, and what its process weighs.
type View struct {
	PeerID    string
	Listen    []string
	Ready     bool
	Connected int // peers
	Known     int // peers in the DHT's routing table
	Kept      int // records
	Own       int // records
	Resident  uint64
}

// Look asks the peer for its status.
func (p *Peer) Look(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := p.Status(ctx)
	if err != nil {
		return View{}, err
	}
	return View{
		PeerID: s.PeerID, Listen: s.Listen, Ready: s.Ready, Connected: s.Peers, Known: s.RoutingTable,
		Kept: s.RecordsKept, Own: s.RecordsOwn, Resident: p.Resident(),
	}, nil
}

// Kill ends the peer as a crash would.
func (p *Peer) Kill() {
	p.ended = true
	p.Process.Kill()
}

// Interrupt ends the peer as an operator would, and waits until it is gone.
func (p *Peer) Interrupt() {
	p.ended = true
	p.Process.Stop()
}

func (p *Peer) stop() {
	p.ended = true
	p.Process.Stop()
	_ = p.Close() // nothing is under way any more
}

// Lost lists the peers that ended by themselves, with their last words.
func (n *Network) Lost() []error {
	var lost []error
	for _, p := range n.Peers {
		if p != nil && !p.ended && !p.Running() {
			lost = append(lost, p.Failure())
		}
	}
	return lost
}

// Founding gives the number of peers that found the coordination group together.
func (n *Network) Founding() int { return len(n.founders) }

// Living gives the peers that run.
func (n *Network) Living() []*Peer {
	return slices.DeleteFunc(slices.Clone(n.Peers), func(p *Peer) bool { return p == nil || !p.Running() })
}

// Stop ends every peer, waits until all are gone, and deletes their data unless it is to
// be kept.
func (n *Network) Stop() {
	var wg sync.WaitGroup
	for _, p := range n.Peers {
		if p != nil {
			wg.Go(p.stop)
		}
	}
	wg.Wait()
	for _, dir := range n.dirs {
		if dir != "" && !n.config.Keep {
			_ = os.RemoveAll(dir) // what cannot be removed is in a temporary directory, or for who named it
		}
	}
}
