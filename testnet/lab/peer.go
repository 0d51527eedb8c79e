package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	httpAddress = "127.0.0.1:8500" // on the loopback of every host
	grpcAddress = "127.0.0.1:8502"
	dnsAddress  = "127.0.0.1:8600"
	listenPort  = 4801 // for other peers, of all profiles

	callLimit = 15 * time.Second // for one request, on a busy machine
)

// peer is one peer across its processes, with a client.
type peer struct {
	*operator.Client
	name string
	id   string
	host *host
	spec process.Spec
	http *http.Client
	log  *os.File

	now        *process.Process // nil before the first start
	stopped    bool             // by the scenario
	distrusted []string         // metrics of distrust of all its processes
}

// peer gives a host a peer, with its data and identity, without a start. change may be nil.
func (w *world) peer(ctx context.Context, h *host, change func(*process.Spec)) (*peer, error) {
	data := filepath.Join(w.dir, h.name)
	id, err := process.Identity(ctx, w.Binary, data)
	if err != nil {
		return nil, err
	}
	p := &peer{name: h.name, id: id, host: h}
	if p.log, err = os.Create(data + ".log"); err != nil {
		return nil, fault.As("lab.peer", fault.Unavailable, err)
	}
	w.peers = append(w.peers, p)
	dial := func(ctx context.Context, _, address string) (net.Conn, error) { return h.space.Dial(ctx, address) }
	p.http = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 1}}
	p.Client, err = operator.New(grpcAddress, operator.Dial(p.inside()))
	if err != nil {
		return nil, err
	}
	p.spec = process.Spec{
		Name: h.name, Binary: w.Binary, Data: data, Profile: "public", Log: p.log,
		Place: process.Place{Listen: process.Everywhere, HTTP: httpAddress, GRPC: grpcAddress, DNS: dnsAddress, Within: h.space.Do},
	}
	if change != nil {
		change(&p.spec)
	}
	return p, nil
}

// inside lets a client dial from inside the peer's host.
func (p *peer) inside() grpc.DialOption { return grpc.WithContextDialer(p.host.space.Dial) }

// start starts the process of the peer.
func (p *peer) start() (err error) {
	p.now, err = process.Start(p.spec)
	p.stopped = false
	return err
}

// stop ends the process like an operator.
func (p *peer) stop(ctx context.Context) {
	p.count(ctx)
	p.stopped = true
	p.now.Stop()
}

// close ends the process and releases the peer.
func (p *peer) close() {
	if p.now != nil {
		_ = p.now.Resume() // a paused process cannot handle SIGTERM
		p.now.Stop()
	}
	if p.Client != nil {
		_ = p.Close() // no call is in flight
	}
	p.http.CloseIdleConnections()
	_ = p.log.Close()
}

func (p *peer) running() bool { return p.now != nil && p.now.Running() }

// failure describes an unexpected end of the process; nil without one.
func (p *peer) failure() error {
	if p.now == nil || p.stopped || p.now.Running() {
		return nil
	}
	return p.now.Failure()
}

// addresses returns multiaddrs of the peer at its host's addresses.
func (p *peer) addresses() []string {
	var all []string
	for _, a := range p.host.addrs {
		family := "ip4"
		if a.Addr().Is6() {
			family = "ip6"
		}
		all = append(all,
			fmt.Sprintf("/%s/%s/udp/%d/quic-v1/p2p/%s", family, a.Addr(), listenPort, p.id),
			fmt.Sprintf("/%s/%s/tcp/%d/p2p/%s", family, a.Addr(), listenPort, p.id))
	}
	return all
}

// look asks the peer for its status.
func (p *peer) look(ctx context.Context) (discovery.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return p.Status(ctx)
}

// awaitReady waits until the peer is ready, with a number of connected peers.
func (p *peer) awaitReady(ctx context.Context, limit time.Duration, connected int) error {
	return await.Until(ctx, limit, p.name+" is ready", func(ctx context.Context) error {
		s, err := p.look(ctx)
		switch {
		case err != nil && !p.running():
			return await.Never(p.now.Failure())
		case err != nil:
			return err
		case !s.Ready || s.Peers < connected:
			return fault.New("lab.Ready", fault.Unavailable, "ready %v, %d of %d peers, conditions %v", s.Ready, s.Peers, connected, names(s.Conditions))
		}
		return nil
	})
}

func names(all []discovery.Condition) []string {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// awaitCondition waits for the begin of a condition, or for its end.
func (p *peer) awaitCondition(ctx context.Context, name string, wanted bool, limit time.Duration) (message string, err error) {
	err = await.Until(ctx, limit, fmt.Sprintf("%s: condition %s %v", p.name, name, wanted), func(ctx context.Context) error {
		s, err := p.look(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Conditions, func(c discovery.Condition) bool { return c.Name == name })
		if i >= 0 {
			message = s.Conditions[i].Message
		}
		if (i >= 0) != wanted {
			return fault.New("lab.awaitCondition", fault.Unavailable, "it has the conditions %v", names(s.Conditions))
		}
		return nil
	})
	return message, err
}

// count adds the distrust of the present process. It counts a process once.
func (p *peer) count(ctx context.Context) {
	if p.stopped || !p.running() {
		return
	}
	found, err := network.Distrust(ctx, p.http, httpAddress)
	if err == nil {
		p.distrusted = append(p.distrusted, found...)
	}
}

// get returns the body of an answer of the HTTP API, whatever its status.
func (p *peer) get(ctx context.Context, path string) (string, error) {
	const op, most = "lab.get", 16 << 20
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+httpAddress+path, nil)
	if err != nil {
		return "", fault.As(op, fault.Invalid, err)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return "", fault.As(op, fault.Unavailable, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	return string(body), fault.As(op, fault.Unavailable, errors.Join(err, resp.Body.Close()))
}
