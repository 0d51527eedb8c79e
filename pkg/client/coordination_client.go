package client

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/attempt"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Coordination is the contract of the coordination plane as served by a peer: each call is one
// request without repetition. Sessions, watches and elections add repetition; most programs
// want them.
//
// It implements coord.Service and coord.Admin. The peer determines the owner of a call: the owner of a command is not
// sent.
type Coordination = calls.Peer

// Coordination returns the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// WithClock is an option of New: the clock for the lifetime of leases. The default is
// CLOCK_BOOTTIME on Linux, and Go's monotonic clock elsewhere.
func WithClock(clock Clock) grpc.DialOption { return clockOption{clock: clock} }

// clockOption is an option for New; gRPC ignores it.
type clockOption struct {
	grpc.EmptyDialOption
	clock Clock
}

// connectCoordination adds the coordination plane to a connected client.
func connectCoordination(c *Client, opts []grpc.DialOption) {
	c.clock = systemClock()
	c.application = strings.ToValidUTF8(filepath.Base(os.Args[0]), "")
	for _, o := range opts {
		if own, ok := o.(clockOption); ok {
			c.clock = own.clock
		}
	}
	c.vary = jitter()
	c.coordination = calls.NewPeer(calls.PeerConfig{Conn: c.conn, Patient: c.patient, Begin: spans(opts)})
	c.sessions = &renewer[*Session]{batch: coord.MaxKeepAlive, tries: 2, send: c.renewSessions}
	c.sessions.configure(c)
	c.identities = attempt.NewPool("")
}

// jitter varies delays by 20 % in both directions, so that clients with a common failure do not
// retry together. The system provides the seed, which affects only the times of retries.
func jitter() func(time.Duration) time.Duration {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails
	random := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
	var mu sync.Mutex
	return func(d time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(float64(d) * (0.8 + 0.4*random.Float64()))
	}
}

func errClosed() error { return fault.New("client.Close", fault.Canceled, "the client is closed") }
