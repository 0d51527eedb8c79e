package routing

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Remote is the member at another peer.
type Remote interface {
	Target
	io.Closer
}

// connection is the contract at another peer, with its connections.
type connection struct {
	*calls.Peer
	conns []*grpc.ClientConn
}

// Connect returns the member at a gRPC target. It connects at the first call, and again after a loss. Watches and backups have a
// connection of their own. A nil begin makes no spans.
func Connect(target string, options []grpc.DialOption, begin calls.BeginSpan) (Remote, error) {
	options = append(append(calls.Bounds(), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	})), append(options, calls.Traced(begin)...)...)
	c := new(connection)
	for range 2 {
		conn, err := grpc.NewClient(target, options...)
		if err != nil {
			return nil, fault.As("routing.connect", fault.Invalid, errors.Join(err, c.close()))
		}
		c.conns = append(c.conns, conn)
	}
	c.Peer = calls.NewPeer(calls.PeerConfig{Conn: c.conns[0], Patient: c.conns[1], Speaks: true, Begin: begin})
	return c, nil
}

// Close ends the connections and all their calls.
func (c *connection) Close() error {
	c.Peer.Close()
	err := c.close()
	c.Wait()
	return err
}

func (c *connection) close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// remotes caches the connections to other peers' members.
type remotes struct {
	dial func(peer.ID) (Remote, error)

	mu   sync.Mutex
	open map[peer.ID]Remote // nil after Close
}

// maxRemotes bounds the peers: all members of a group, and some more. Any of them makes room for a new one.
const maxRemotes = 16

func (r *remotes) get(p peer.ID) (Remote, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		return nil, fault.New("routing.remotes", fault.Unavailable, "is closed")
	}
	if got, ok := r.open[p]; ok {
		return got, nil
	}
	for old, one := range r.open {
		if len(r.open) < maxRemotes {
			break
		}
		delete(r.open, old)
		_ = one.Close() // callers repeat the interrupted calls
	}
	made, err := r.dial(p)
	if err != nil {
		return nil, err
	}
	r.open[p] = made
	return made, nil
}

func (r *remotes) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, one := range r.open {
		errs = append(errs, one.Close())
	}
	r.open = nil
	return errors.Join(errs...)
}
