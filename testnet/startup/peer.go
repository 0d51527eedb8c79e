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
	apiPort    = 8500 // of every host, on its own loopback, and the next two
	listenPort = 4001 // for other peers
	portsEach  = 4    // where all are on one machine
	checkEvery = time.Minute
	replace    = 6 * time.Second // a voter's silence
)

// peer is where one peer runs, whatever process it is at the moment. Its addresses stay.
type peer struct {
	process.Place
	name string
	data string
	id   string
	api  *app.REST
	log  *os.File

	mu     sync.Mutex // guards what follows
	now    *process.Process
	killed bool // by us
}

// house gives every peer its place and its identity, so that each can know all others before any runs.
func (r *run) house(ctx context.Context) (err error) {
	r.peers = make([]*peer, r.Peers)
	var free []string // ports of all peers at once, so that none is given twice
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

// place gives a peer its addresses, of those that are free where all are on one machine.
func (r *run) place(i int, free []string) (err error) {
	p := r.peers[i]
	if p.log, err = os.Create(filepath.Join(r.dir, p.name+".log")); err != nil {
		return fault.As("startup.place", fault.Unavailable, err)
	}
	if r.LAN == nil {
		at := free[i*portsEach:]
		_, port, _ := net.SplitHostPort(at[0]) // it is one
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

// start starts a peer that does not run.
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

// kill ends a peer as a crash would.
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

// failure tells why a peer ended by itself; nil when it did not.
func (p *peer) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || p.killed || p.now.Running() {
		return nil
	}
	return p.now.Failure()
}
