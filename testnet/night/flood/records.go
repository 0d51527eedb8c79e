package flood

import (
	"context"
	"crypto/rand"
	"fmt"
	"github.com/libp2p/go-libp2p/core/protocol"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	keeperv1 "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
	"github.com/blackhole/blackhole/testnet/await"
)

// Place and type of the honest offers: their cells are the hot ones.
const (
	latitude, longitude = 52.5, 13.4
	kind                = "compute"
)

const (
	recordsOfProvider = 100 // as many as a keeper accepts
	recordsAtOnce     = 20  // of a STORE
	recordsOfForger   = 16  // as many as a peer without a score may send
)

// provider signs records of the hot cells. Its uptime of 0 excludes them from the honest questions, so that no answer may leave
// out an honest record for a better one.
type provider struct {
	key   crypto.PrivKey
	made  int
	offer func(i int) records.Offer
}

// next returns a record of a provider, and changes the provider after 100.
func (p *provider) next(h *hostile) (*records.Record, error) {
	if p.key == nil || p.made >= recordsOfProvider {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			return nil, err
		}
		p.key, p.made = key, 0
	}
	p.made++
	now := time.Now()
	return records.Sign(h.order.Network, p.key, p.offer(p.made), records.Stamp{Sequence: records.NextSequence(0, now), Issued: now, Expires: now.Add(time.Hour)})
}

// spam is an offer of the hot cells.
func spam(i int) records.Offer {
	o, up := plain(fmt.Sprintf("spam-%d", i), kind), 0.0
	o.Metadata.Endpoints, o.Health = []string{"https://spam.example.com"}, &records.Health{Status: "HEALTHY", UptimePercent: &up}
	return o
}

// store makes a request to keep some records for all their cells.
func (p *provider) store(h *hostile, n int) (*keeperv1.StoreRequest, error) {
	store := &keeperv1.StoreRequest{}
	for range n {
		r, err := p.next(h)
		if err != nil {
			return nil, err
		}
		item := &keeperv1.StoreItem{Envelope: r.Envelope()}
		for _, c := range r.Cells() {
			item.Cells = append(item.Cells, c.String())
		}
		store.Items = append(store.Items, item)
	}
	return store, nil
}

// storing stores records of such offers.
func storing(offer func(i int) records.Offer) func(context.Context, *hostile) {
	return func(ctx context.Context, h *hostile) { storeRecords(ctx, h, offer) }
}

func storeRecords(ctx context.Context, h *hostile, offer func(i int) records.Offer) {
	p := provider{offer: offer}
	h.converse(ctx, h.keepers(), func() (proto.Message, proto.Message, int) {
		store, err := p.store(h, recordsAtOnce)
		if err != nil {
			panic("flood: " + err.Error()) // impossible: the offer is valid
		}
		return &keeperv1.Request{Op: &keeperv1.Request_Store{Store: store}}, &keeperv1.Response{}, len(store.Items)
	}, func(m proto.Message, n int) {
		resp := m.(*keeperv1.Response)
		if resp.Refusal != nil {
			h.tally.send(int64(n), reason(resp.Refusal))
			return
		}
		for _, result := range resp.GetStore().GetResults() {
			h.tally.send(1, reason(result.Refusal))
		}
	})
}

// reason names a refusal: empty without one.
func reason(r *peerv1.Refusal) string {
	if r == nil {
		return ""
	}
	return r.Code.String()
}

// gossipValid publishes signed records.
func gossipValid(ctx context.Context, h *hostile) {
	p := provider{offer: spam}
	h.publish(ctx, 0, func() ([]byte, error) {
		r, err := p.next(h)
		if err != nil {
			return nil, err
		}
		return r.Envelope(), nil
	})
}

// gossipForged publishes records with a false signature.
func gossipForged(ctx context.Context, h *hostile) {
	p := provider{offer: spam}
	h.publish(ctx, recordsOfForger, func() ([]byte, error) {
		r, err := p.next(h)
		if err != nil {
			return nil, err
		}
		forged := append([]byte(nil), r.Envelope()...)
		forged[len(forged)-1] ^= 1
		return forged, nil
	})
}

// publish sends messages on the topics of the place and of the type in turn. It changes its identity after a number of
// messages; 0: never. A peer answers no message: all that were sent count as accepted here.
func (h *hostile) publish(ctx context.Context, each int, next func() ([]byte, error)) {
	id := protocol.ID(h.order.Network.Protocol("meshsub", "1.2.0"))
	topics := h.order.Network.Topics("live", "1") + kind + "/"
	cells := []geo.Cell{geo.CellOf(geo.Point{Lat: latitude, Lon: longitude}, 2), geo.Global}
	for h.await(ctx, id) {
		stream, err := h.open(ctx, id)
		if err != nil {
			h.tally.send(1, "stream: "+short(err))
			_ = await.Pause(ctx, comesBack)
			continue
		}
		for sent := 0; each == 0 || sent < each; sent++ {
			if !h.pace.turn(ctx, 1) {
				return
			}
			data, err := next()
			if err != nil {
				return
			}
			topic := topics + string(cells[sent%len(cells)])
			if err := h.send(stream, &pubsub.RPC{Publish: []*pubsub.Message{{Data: data, Topic: &topic}}}); err != nil {
				h.tally.send(1, "stream: "+short(err))
				break
			}
			h.tally.send(1, "")
		}
		_ = stream.CloseWrite()
		_ = await.Pause(ctx, comesBack) // what was sent arrives before the connection ends
	}
}

func (h *hostile) send(s network.Stream, m proto.Message) error {
	if err := s.SetWriteDeadline(time.Now().Add(callLimit)); err != nil {
		return err
	}
	_, err := protodelim.MarshalTo(s, m)
	return err
}
