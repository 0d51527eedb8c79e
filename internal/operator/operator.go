// Package operator is the client of those who care for a peer: the SDK, and beside it the state of the peer, what
// matters at it, its parts for a report of a fault, and the contracts of the planes without repetition.
package operator

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Client is a client of the SDK with more. It is safe for concurrent use.
type Client struct {
	*client.Client
	link *link.Link
	life context.Context // ends with Close
	end  context.CancelFunc
}

// New returns a client of the peer at an address: see client.New.
func New(address string, opts ...client.Option) (*Client, error) {
	var s link.Settings
	for _, apply := range opts {
		apply(&s)
	}
	l, err := link.Open(address, s)
	if err != nil {
		return nil, fault.Wrap("operator.New", err)
	}
	c, err := client.New(address, append(slices.Clip(opts), func(s *link.Settings) { s.Over = l })...)
	if err != nil { // impossible: the link is open
		return nil, fault.Wrap("operator.New", errors.Join(err, l.Close()))
	}
	o := &Client{Client: c, link: l}
	o.life, o.end = context.WithCancel(context.Background())
	return o, nil
}

// Close ends the client and its calls: see client.Client.Close.
func (c *Client) Close() error {
	c.end()
	return c.Client.Close()
}

// Dial adds options of gRPC, such as another way to reach the peer.
func Dial(opts ...grpc.DialOption) client.Option {
	return func(s *link.Settings) { s.Dial = append(s.Dial, opts...) }
}

// Coordination returns the contract of the coordination plane.
func (c *Client) Coordination() *calls.Peer { return c.link.Coordination }

// Agent returns the contract of the agent plane.
func (c *Client) Agent() *link.Agent { return c.link.Agent }
