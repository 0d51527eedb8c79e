package flood

import (
	"bufio"
	"context"
	"crypto/rand"
	"hash/fnv"
	"math/bits"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/records"
	keeperv1 "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	groundTries  = 2000
	oldAnswers   = 4096            // that one keeper remembers
	lateBy       = 3 * time.Second // of a slow keeper
	keeperRejoin = 20 * time.Second
	muteAsks     = 3 * time.Second
)

// ground makes the identity closest to a key of the DHT, of some tries.
func ground(to string) (best crypto.PrivKey, err error) {
	near := -1
	want := kb.ConvertKey(to)
	for range groundTries {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			return nil, err
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			return nil, err
		}
		if common := kb.CommonPrefixLen(want, kb.ConvertPeerID(id)); common > near {
			best, near = key, common
		}
	}
	return best, nil
}

// keepers is the protocol of keepers.
func (h *hostile) keepers() protocol.ID {
	return protocol.ID(h.order.Network.Protocol("keeper", "1.0.0"))
}

// settle makes the host a server of the DHT, with an id close to a hot cell.
func (h *hostile) settle(ctx context.Context) (crypto.PrivKey, error) {
	cell, err := records.ParseCellKey(hotCells()[0])
	if err != nil {
		return nil, err
	}
	key, err := ground(string(cell.CID().Hash()))
	if err != nil {
		return nil, err
	}
	h.leave()
	if h.host, err = newHost(h.from, key); err != nil {
		return nil, err
	}
	h.tally.host()
	known := peer.AddrInfo{ID: h.target.ID, Addrs: h.reachable()}
	h.table, err = dht.New(h.host, dht.ProtocolPrefix(protocol.ID(h.order.Network.Prefix())),
		dht.Mode(dht.ModeServer), dht.DisableValues(), dht.DisableProviders(), dht.BootstrapPeers(known))
	if err != nil {
		return nil, err
	}
	if err := h.arrive(ctx); err != nil {
		return nil, err
	}
	return key, h.table.Bootstrap(ctx)
}

// lie is a keeper near the hot cells that has nothing itself: it asks the target, and answers with less, late, or what
// it heard before.
func lie(ctx context.Context, h *hostile) {
	var mu sync.Mutex // guards old
	old := map[uint64][]byte{}
	style := int(h.from.As4()[0]) % 3
	id := h.keepers()
	for ctx.Err() == nil {
		if _, err := h.settle(ctx); err != nil {
			h.tally.send(1, "it does not join: "+err.Error())
			if await.Pause(ctx, keeperRejoin) != nil {
				return
			}
			continue
		}
		h.host.SetStreamHandler(id, func(s network.Stream) {
			defer func() { _ = s.Reset() }()
			defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
			for r := bufio.NewReader(s); ; {
				req, resp := &keeperv1.Request{}, &keeperv1.Response{}
				if (protodelim.UnmarshalOptions{MaxSize: maxResponse}).UnmarshalFrom(r, req) != nil { // others set the pace
					return
				}
				req.TimeoutMs, req.Traceparent = 0, ""
				if h.once(ctx, id, req, resp) != nil {
					return
				}
				switch style {
				case 0:
					withhold(resp)
				case 1:
					if await.Pause(ctx, lateBy) != nil {
						return
					}
				default:
					mu.Lock()
					resp = repeat(old, req, resp)
					mu.Unlock()
				}
				h.tally.send(1, "")
				if h.send(s, resp) != nil {
					return
				}
			}
		})
		for h.host.Network().Connectedness(h.target.ID) == network.Connected && await.Pause(ctx, time.Second) == nil {
		}
	}
}

// mute is a keeper that asks all others to compare, again and again, and answers nobody.
func mute(ctx context.Context, h *hostile) {
	id := h.keepers()
	for ctx.Err() == nil {
		_, err := h.settle(ctx)
		if err != nil {
			h.tally.send(1, "it does not join: "+short(err))
			_ = await.Pause(ctx, keeperRejoin)
			continue
		}
		h.host.SetStreamHandler(id, func(s network.Stream) { drain(s) })
		honest := h.target
		for h.host.Network().Connectedness(honest.ID) == network.Connected && await.Pause(ctx, muteAsks) == nil {
			for _, other := range h.table.RoutingTable().ListPeers() {
				h.target.ID = other
				sync := &keeperv1.SyncRequest{Whole: true, Sums: random(32)}
				req := &keeperv1.Request{Op: &keeperv1.Request_Sync{Sync: sync}}
				h.tally.send(1, because(h.once(ctx, id, req, &keeperv1.Response{})))
			}
			h.target = honest
		}
	}
}

// withhold leaves out a part of what a keeper has, and counts as if that were all.
func withhold(resp *keeperv1.Response) {
	if q := resp.GetQuery(); q != nil {
		kept := q.Envelopes[:0]
		for _, e := range q.Envelopes {
			if sum := fnv.New64a(); bits.OnesCount64(digest(sum, e))%2 == 0 {
				kept = append(kept, e)
			}
		}
		q.Total -= min(q.Total, uint64(len(q.Envelopes)-len(kept)))
		q.Envelopes = kept
	}
	if r := resp.GetResolve(); r != nil {
		r.Envelope = nil
	}
}

func digest(sum interface {
	Write([]byte) (int, error)
	Sum64() uint64
}, b []byte) uint64 {
	_, _ = sum.Write(b) // a hash takes all
	return sum.Sum64()
}

// repeat returns the first answer to a request, whatever has happened since.
func repeat(old map[uint64][]byte, req *keeperv1.Request, resp *keeperv1.Response) *keeperv1.Response {
	if req.GetQuery() == nil && req.GetResolve() == nil {
		return resp
	}
	key, err := proto.Marshal(req)
	if err != nil {
		return resp
	}
	of := digest(fnv.New64a(), key)
	if text, known := old[of]; known {
		before := &keeperv1.Response{}
		if proto.Unmarshal(text, before) == nil {
			before.TimeMs = resp.TimeMs
			return before
		}
	}
	if text, err := proto.Marshal(resp); err == nil && len(old) < oldAnswers {
		old[of] = text
	}
	return resp
}
