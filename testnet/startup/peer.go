package startup

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	apiPort    = 8500 // on the loopback of every host, and the next two ports
	listenPort = 4001 // for other peers
	portsEach  = 4    // ports for each peer, with all peers on one machine
	checkEvery = time.Minute
	replace    = 6 * time.Second // silence before a voter is replaced
)

// peer is the place of one peer across its processes. Its addresses stay.
type peer struct {
	process.Place
	name string
	data string
	id   string
	api  *app.REST
	log  *os.File

	mu     sync.Mutex // guards what follows
	now    *process.Process
	killed bool // by this program
}

// house gives every peer its place and its identity, so that each knows all others before the
// first start.
func (r *run) house(ctx context.Context) (err error) {
	r.peers = make([]*peer, r.Peers)
	var free []string // all ports at once, so that none is used twice
	if r.LAN == nil {
		if free, err = process.FreePorts(r.Peers * portsEach); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range r.peers {
		p := &peer{name: fmt.Sprintf("peer-%d", i+1)}
		r.peers[i] = p
		if err := r.place(i, free); err != nil {
			return err
		}
		group.Go(func() (err error) {
			p.data = filepath.Join(r.dir, p.name)
			p.id, err = process.Identity(ctx, r.Binary, p.data)
			return err
		})
	}
	return group.Wait()
}

// place assigns addresses to a peer; free has the ports for peers on one machine.
func (r *run) place(i int, free []string) (err error) {
	p := r.peers[i]
	if p.log, err = os.Create(filepath.Join(r.dir, p.name+".log")); err != nil {
		return fault.As("startup.place", fault.Unavailable, err)
	}
	if r.LAN == nil {
		at := free[i*portsEach:]
		_, port, _ := net.SplitHostPort(at[0]) // FreePorts returns host:port
		p.Place = process.Place{Listen: "/ip4/127.0.0.1/tcp/" + port, HTTP: at[1], GRPC: at[2], DNS: at[3]}
		p.api = app.At(p.HTTP, nil)
		return nil
	}
	host := r.LAN.Hosts[i]
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", apiPort+n) }
	p.Place = process.Place{
		Listen: fmt.Sprintf("/ip4/%s/tcp/%d", host.IP, listenPort), HTTP: at(0), DNS: at(1), GRPC: at(2), Within: host.Do,
	}
	p.api = app.At(p.HTTP, func(ctx context.Context, _, address string) (net.Conn, error) { return host.Dial(ctx, address) })
	return nil
}

// start starts a stopped peer.
func (r *run) start(i int) error {
	p := r.peers[i]
	spec := process.Spec{
		Name: p.name, Binary: r.Binary, Data: p.data, Check: checkEvery, Replace: replace, Log: p.log, Place: p.Place,
	}
	for j, other := range r.peers {
		if j < r.Founders {
			spec.Founders = append(spec.Founders, other.id)
		}
		if j != i {
			spec.Bootstrap = append(spec.Bootstrap, other.Listen+"/p2p/"+other.id)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	p.now, p.killed = proc, false
	return nil
}

// kill ends a peer like a crash.
func (p *peer) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.killed = true
		p.now.Kill()
	}
}

func (p *peer) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil && p.now.Running()
}

// failure explains why a peer ended by itself; nil if it did not.
func (p *peer) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || p.killed || p.now.Running() {
		return nil
	}
	return p.now.Failure()
}
