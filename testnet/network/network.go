// Package network starts a local network of real peers: one process each, on loopback. All peers
// bootstrap from the first.
package network

import (
	"cmp"
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

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	launchLimit  = 2 * time.Minute  // from the start of a process to its first answer
	readyLimit   = 5 * time.Minute  // from the start of the processes until every peer knows all others
	wellLimit    = time.Minute      // from the start of all processes until none has a condition
	callLimit    = 10 * time.Second // for one status request
	launchTrials = 3                // attempts, if another process takes a port
	atOnce       = 4                // processes launched at the same time
	enough       = 20               // peers known to each peer of a large network: k of Kademlia
)

// Config describes the network.
type Config struct {
	Peers  int
	Binary string        // the blackholed binary
	Dir    string        // parent of the data directories
	Check  time.Duration // interval of provider checks

	Founders int           // number of peers, from the first, that may be members; three of them found; 0: the first peer founds alone
	Replace  time.Duration // silence before a voter is replaced; 0 means the default

	Adapt func(i int, s *process.Spec)  // changes the start of peer i; may be nil
	Dial  func(i int) []grpc.DialOption // dial options of clients; nil means the default

	Enough   int                             // peers that each must know at the start; 0: all, at most 20
	Launched func(i int, p *process.Process) // hears of every process of peer i; may be nil

	Log  io.Writer // receives the logs of all peers; may be nil
	Keep bool      // keep the data directories after the stop

	Known bool // the data directories may have peers of before
	Shops bool // each peer has a server, which its offers name, and which lives and dies with it
}

// Network is a running network. Callers must call Stop.
type Network struct {
	Peers []*Peer // peers[0] is the bootstrap peer

	config   Config
	dirs     []string        // existing data directories
	places   []process.Place // of the last process of each peer; the next one gets it
	shops    []string        // addresses of the servers, host:port
	founders []string        // peer ids
}

// Peer is one process of the network, and a client of it.
type Peer struct {
	*operator.Client
	*process.Process
	API    *app.REST   // of a peer on this host
	Shop   *app.Server // nil without Config.Shops
	Name   string
	ID     peer.ID
	Listen []string // multiaddrs
	Data   string
	Idle   uint64 // resident bytes of the ready, empty network

	ended bool // by Kill or Stop
}

// Start starts the peers and waits until they are ready and know each other. It fails with the
// last log lines of the failed peer, after stopping all.
func Start(ctx context.Context, c Config) (*Network, error) {
	n := &Network{
		config: c, Peers: make([]*Peer, c.Peers), dirs: make([]string, c.Peers),
		places: make([]process.Place, c.Peers), shops: make([]string, c.Peers),
	}
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
	if err := n.launchAll(ctx); err != nil {
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

// launchAll starts the first peer, then the others with it as bootstrap peer.
func (n *Network) launchAll(ctx context.Context) error {
	if err := n.launch(ctx, 0, nil); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := 1; i < len(n.Peers); i++ {
		group.Go(func() error { return n.launch(ctx, i, n.Peers[0].Listen) })
	}
	return group.Wait()
}

// house creates the data directory of peer i, and the identity of a founder.
func (n *Network) house(ctx context.Context, i int) error {
	data := filepath.Join(n.config.Dir, nameOf(i))
	if err := os.Mkdir(data, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fault.As("network.house", fault.Invalid, err)
	}
	if old, err := os.ReadDir(data); err != nil || len(old) > 0 && !n.config.Known {
		return fault.Invalidf("data", data, "there is a peer of an earlier run: choose another directory, or remove %s", data)
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

// launch starts peer i, at the addresses of its last process, and waits until it answers. An address
// that another program has taken is replaced.
func (n *Network) launch(ctx context.Context, i int, bootstrap []string) error {
	c := n.config
	var options []grpc.DialOption
	if c.Dial != nil {
		options = c.Dial(i)
	}
	for trial := 1; ; trial++ {
		spec := process.Spec{
			Name: nameOf(i), Binary: c.Binary, Data: n.dirs[i], Bootstrap: bootstrap, Check: c.Check,
			Founders: n.founders, Replace: c.Replace, Log: c.Log, Place: n.places[i],
		}
		if c.Adapt != nil {
			c.Adapt(i, &spec)
		}
		p, err := start(spec, options)
		if err != nil {
			return err
		}
		n.Peers[i], n.places[i] = p, p.Place
		if c.Launched != nil {
			c.Launched(i, p.Process)
		}
		err = p.awaitAddress(ctx)
		if err == nil {
			return n.openShop(i)
		}
		if trial == launchTrials || !p.Clashed() {
			return err
		}
		p.stop()
		n.places[i] = process.Place{}
	}
}

// openShop starts the server of peer i, at its last address.
func (n *Network) openShop(i int) error {
	if !n.config.Shops {
		return nil
	}
	if n.shops[i] == "" {
		free, err := process.FreePorts(1)
		if err != nil {
			return err
		}
		n.shops[i] = free[0]
	}
	s, err := app.ServeAt(n.shops[i], nameOf(i)+" serves what it offers here\n")
	n.Peers[i].Shop = s
	return err
}

// Restart starts a killed peer on its old data, at its old addresses; the network brings it up to date.
// It fails with the last log lines of the peer.
func (n *Network) Restart(ctx context.Context, p *Peer) error {
	var bootstrap []string
	for _, other := range n.Living() {
		bootstrap = append(bootstrap, other.Listen...)
	}
	_ = p.Close() // the old process is dead
	return n.launch(ctx, slices.Index(n.Peers, p), bootstrap)
}

// Add starts one more peer. It fails with the last log lines of the peer, and leaves nothing of it.
func (n *Network) Add(ctx context.Context) (*Peer, error) {
	var bootstrap []string
	for _, p := range n.Living() {
		bootstrap = append(bootstrap, p.Listen...)
	}
	i := len(n.Peers)
	n.Peers, n.dirs = append(n.Peers, nil), append(n.dirs, "")
	n.places, n.shops = append(n.places, process.Place{}), append(n.shops, "")
	err := n.house(ctx, i)
	if err == nil {
		err = n.launch(ctx, i, bootstrap)
	}
	if err == nil {
		return n.Peers[i], nil
	}
	if p := n.Peers[i]; p != nil {
		p.stop()
	}
	if dir := n.dirs[i]; dir != "" {
		_ = os.RemoveAll(dir) // a leftover is removed with the other directories
	}
	n.Peers, n.dirs, n.places, n.shops = n.Peers[:i], n.dirs[:i], n.places[:i], n.shops[:i]
	return nil, err
}

// RestartAll kills all peers, and starts them on their old data, at their old addresses.
func (n *Network) RestartAll(ctx context.Context) error {
	for _, p := range n.Peers {
		p.Kill()
		_ = p.Close()
	}
	return n.launchAll(ctx)
}

// start starts a process and creates its client; a process without a client is stopped.
func start(spec process.Spec, options []grpc.DialOption) (*Peer, error) {
	proc, err := process.Start(spec)
	if err != nil {
		return nil, err
	}
	c, err := operator.New(proc.GRPC, operator.Dial(options...))
	if err != nil {
		proc.Kill()
		return nil, err
	}
	return &Peer{Client: c, Process: proc, API: app.At(proc.HTTP, nil), Name: spec.Name, Data: spec.Data}, nil
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

// awaitReady waits until all peers are ready and know each other.
func (n *Network) awaitReady(ctx context.Context) error {
	limit := time.Now().Add(readyLimit)
	for _, p := range n.Peers {
		err := await.Until(ctx, time.Until(limit), p.Name+" knows all peers", func(ctx context.Context) error {
			v, err := p.Look(ctx)
			switch others := cmp.Or(n.config.Enough, min(len(n.Peers)-1, enough)); {
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

// AwaitWell waits until no living peer has a condition to tell, and each answers completely: one that has just started tells nothing yet.
func (n *Network) AwaitWell(ctx context.Context) error {
	for _, p := range n.Living() {
		err := await.Until(ctx, wellLimit, p.Name+" is well", func(ctx context.Context) error {
			s, err := p.Status(ctx)
			switch {
			case err != nil:
				return err
			case len(s.Conditions) > 0:
				return fault.New("network.Well", fault.Unavailable, "%s", s.Conditions[0].Message)
			}
			a, err := p.Offers().Query(ctx, query.Query{Type: "compute", Limit: 1})
			if err == nil && !a.Complete {
				err = fault.New("network.Well", fault.Unavailable, "%s", a.Reason)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// excuse makes an error permanent after the end of the process.
func (p *Peer) excuse(err error) error {
	if p.Running() {
		return fault.New("network.Start", fault.Unavailable, "%w; %w", err, p.Failure())
	}
	return await.Never(p.Failure())
}

// View is the status of a peer, and the memory of its process.
type View struct {
	PeerID     string
	Listen     []string
	Ready      bool
	Connected  int // peers
	Known      int // peers in the routing table of the DHT
	Kept       int // records
	Own        int // records
	Announcing int // records that some keeper has not taken
	Resident   uint64
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
		Kept: s.RecordsKept, Own: s.RecordsOwn, Announcing: s.RecordsAnnouncing, Resident: p.Resident(),
	}, nil
}

// Kill ends the peer like a crash.
func (p *Peer) Kill() {
	p.end()
	p.Process.Kill()
}

// Interrupt ends the peer like an operator, and waits for the end.
func (p *Peer) Interrupt() {
	p.end()
	p.Process.Stop()
}

// end notes that the process is about to end, and ends the server.
func (p *Peer) end() {
	p.ended = true
	if p.Shop != nil {
		p.Shop.Die()
	}
}

func (p *Peer) stop() {
	p.Interrupt()
	_ = p.Close() // no call is in flight
}

// Lost lists the peers that ended by themselves, with their last log lines.
func (n *Network) Lost() []error {
	var lost []error
	for _, p := range n.Peers {
		if p != nil && !p.ended && !p.Running() {
			lost = append(lost, p.Failure())
		}
	}
	return lost
}

// Founding returns the number of founders of the shared group.
func (n *Network) Founding() int { return len(n.founders) }

// Living returns the running peers.
func (n *Network) Living() []*Peer {
	return slices.DeleteFunc(slices.Clone(n.Peers), func(p *Peer) bool { return p == nil || !p.Running() })
}

// Stop ends every peer, waits for the end, and deletes the data unless Keep is set.
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
			_ = os.RemoveAll(dir) // leftovers lie in a temporary directory or in a directory named by the user
		}
	}
}
