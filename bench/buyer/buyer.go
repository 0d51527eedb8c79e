// Package buyer is a peer that buys and does nothing else, so that one process has as many as a seller's rates ask for.
package buyer

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/trade"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Buyer is a peer with a new identity. Callers must call Close.
type Buyer struct {
	host   host.Host
	desk   *trade.Desk
	seller peer.ID
}

// New connects a buyer to a seller. dir need not exist.
func New(ctx context.Context, n network.Name, dir string, seller peer.AddrInfo) (*Buyer, error) {
	const op = "buyer.New"
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.DisableMetrics())
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	b := &Buyer{host: h, seller: seller.ID}
	if err = h.Connect(ctx, seller); err == nil {
		b.desk, err = trade.Open(trade.Config{Network: n, Key: key, Host: h, Dir: dir, All: func() []*records.Record { return nil }})
	}
	if err != nil {
		return nil, errors.Join(fault.As(op, fault.Unavailable, err), h.Close())
	}
	return b, nil
}

// Cycle takes a unit of an offer and gives it back.
func (b *Buyer) Cycle(ctx context.Context, key string) error {
	got, err := b.desk.Reserve(ctx, &api.ReserveRequest{Key: key})
	if err == nil {
		_, err = b.desk.Release(ctx, &api.ReleaseRequest{Token: got.GetGrant().GetToken(), ProviderId: b.seller.String()})
	}
	return err
}

// Close ends the buyer.
func (b *Buyer) Close() error { return errors.Join(b.desk.Close(), b.host.Close()) }
