// Package client is the Go SDK. It calls a local peer over gRPC. A Client has four doors.
//
// Clients trust their peer, which has verified the records in its answers. Errors keep their kinds: errors.Is works
// with the kinds of package fault.
//
// # Offers
//
// Client.Offers is the discovery plane: offers of the peer, and questions about those of all peers. For an
// independent check, Record.Envelope has the signed bytes for records.Open. Offers.Reserve takes what was found, and Offers.Connect
// reaches it.
//
// # Services
//
// Client.Services is the agent plane. Services.Register keeps an instance registered while the program runs,
// Services.Discover caches the instances of other services, and Services.Watch and Services.Follow report changes.
// Package resolver finds instances for gRPC.
//
// # Locks
//
// Client.Locks begins with a Session: a lease with automatic renewal. Its locks (Session.Lock) and elections
// (Session.Campaign) end for the holder before the group gives them to others.
//
// A lock is a promise about time, and a paused or disconnected holder loses track of time. The resource behind a
// lock should check the fencing token: package fence does so for a file, a row in a database and an HTTP endpoint.
//
// # Keys
//
// Client.KV reads, changes and watches the keys of the group, and repeats what was lost on the way.
package client

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// DefaultAddress is the default gRPC address of a peer.
const DefaultAddress = link.DefaultAddress

// maxApplication bounds the name of a program, as file systems do, in bytes.
const maxApplication = 255

// Client is a connection to one peer. It is safe for concurrent use.
type Client struct {
	link        *link.Link
	records     api.RecordServiceClient
	trade       api.TradeServiceClient
	services    *Services
	clock       func() time.Duration
	vary        func(time.Duration) time.Duration
	sessions    *renewer[*Session]
	identities  *attempt.Pool
	rules       attempt.Rules // of repeated calls
	application string        // the name of this program for its leases
}

// New returns a client of the peer at a gRPC address: host:port, or unix:///path of a socket. An empty address
// means DefaultAddress. The first call connects, and later calls reconnect after a loss. Without options it suits a
// peer on loopback without TLS. See WithTLS and WithToken for other peers.
func New(address string, opts ...Option) (*Client, error) {
	var s link.Settings
	for _, apply := range opts {
		apply(&s)
	}
	if s.Over == nil {
		var err error
		if s.Over, err = link.Open(address, s); err != nil {
			return nil, fault.Wrap("client.New", err)
		}
	}
	if s.Clock == nil {
		s.Clock = systemClock()
	}
	c := &Client{
		link: s.Over, records: api.NewRecordServiceClient(s.Over.Conn), trade: api.NewTradeServiceClient(s.Over.Conn), clock: s.Clock, vary: jitter(),
		identities:  attempt.NewPool("", nil),
		application: clean.Text(filepath.Base(os.Args[0]), maxApplication),
	}
	c.sessions = &renewer[*Session]{batch: coord.MaxKeepAlive, tries: 2, send: c.renewSessions}
	c.sessions.configure(c)
	c.rules = attempt.Rules{First: firstPause, Last: lastPause, Passing: c.passing, Rest: c.rest}
	c.services = newServices(c)
	return c, nil
}

// Close ends the connection and all its calls. It ends open sessions, whose leases expire in
// the group, and tries for one second to deregister open instances. A second Close does
// nothing.
func (c *Client) Close() error {
	if !c.sessions.close(lost(errClosed())) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.link.Conn.GetState() == connectivity.Ready {
		c.identities.Close(ctx, c.link.Coordination.Execute)
	} else {
		cancel()
	}
	c.services.close(ctx)
	return fault.Wrap("client.Close", c.link.Close())
}
