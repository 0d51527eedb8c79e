package p2p

import (
	"context"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
)

// newPubSub starts GossipSub; it runs until ctx ends. The options, signing policy and
// limits included, are pkg/gossip's. It gets the host without routing: gossip speaks to
// peers that are connected and must never cause a lookup.
func newPubSub(ctx context.Context, h host.Host, opts []pubsub.Option) (*pubsub.PubSub, error) {
	return pubsub.NewGossipSub(ctx, h, opts...)
}
