package routing

import (
	"context"
	"slices"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/amino"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p-kbucket/peerdiversity"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxCloser bounds the peers used from one answer.
const maxCloser = 2 * Replicas

// finder looks up peers with the DHT's own messages. Three properties of kad-dht's lookup make it unsuitable
// for keepers: it waits for dials to dead peers until the deadline, it drops those peers from the result, and
// it treats a peer without room for another connection like a dead one. Keepers need a bounded time and equal
// results at all peers. See search.
type finder struct {
	dht      *dht.IpfsDHT
	protocol protocol.ID // of the DHT; only servers speak it
	host     host.Host
	requests *requests
	messages *dhtpb.ProtocolMessenger // over requests
	open     bool                     // the filters of an open network apply
	admits   dht.RouteTableFilterFunc
	prober   Prober
}

func newFinder(d *dht.IpfsDHT, c Config, prober Prober) (*finder, error) {
	r := newRequests(d.MessageSender(), c.Host, dhtProtocol(c.Network))
	messages, err := dhtpb.NewProtocolMessenger(r)
	f := &finder{
		dht: d, protocol: dhtProtocol(c.Network), host: c.Host, requests: r, messages: messages, open: c.Open, prober: prober,
		admits: func(any, peer.ID) bool { return true },
	}
	if f.open {
		f.admits = publicTable(c.Host)
	}
	return f, err
}

// reply is the result of one request to a peer.
type reply struct {
	from   peer.ID
	state  state
	closer []peer.ID
	gone   bool // the dial failed
}

// closest runs a lookup. It returns the closest peers so far together with an error: Unavailable if too many of
// the closest peers could not be asked, or ctx's.
func (f *finder) closest(ctx context.Context, key string) ([]peer.ID, error) {
	s := newSearch(key, f.host.ID())
	for _, id := range slices.Concat(f.dht.RoutingTable().NearestPeers(s.target, Replicas), f.acquainted(s.target)) {
		s.add(id, f.prober.Avoid(id))
	}
	if len(s.order) == 0 {
		return nil, kb.ErrLookupFailure
	}
	f.run(ctx, key, s)
	found, answers, full := s.found()
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	if err := checkAnswers(len(found), answers, full); err != nil {
		return found, err
	}
	f.dht.RoutingTable().ResetCplRefreshedAtForID(s.target, time.Now())
	return found, nil
}

// acquainted returns the connected servers of the DHT closest to a key. The routing table has 20 peers of the other half of
// the key space, and this peer may be connected to all of them: a search that begins with them asks the closest peers at
// once, and ends after one round trip instead of one for each bucket on the way.
func (f *finder) acquainted(target kb.ID) []peer.ID {
	net, book := f.host.Network(), f.host.Peerstore()
	servers := slices.DeleteFunc(net.Peers(), func(id peer.ID) bool {
		spoken, err := book.SupportsProtocols(id, f.protocol)
		return err != nil || len(spoken) == 0 || net.Connectedness(id) != network.Connected || !f.admits(f.dht, id)
	})
	near := kb.SortClosestPeers(servers, target)
	near = near[:min(len(near), Replicas)]
	if !f.open {
		return near
	}
	infos := make([]*peer.AddrInfo, len(near))
	for i, id := range near {
		infos[i] = &peer.AddrInfo{ID: id}
		for _, c := range net.ConnsToPeer(id) {
			infos[i].Addrs = append(infos[i].Addrs, c.RemoteMultiaddr())
		}
	}
	var ids []peer.ID
	for _, p := range limitAddressGroups(infos) {
		ids = append(ids, p.ID)
	}
	return ids
}

// checkAnswers fails if too few of the closest peers answered: the others may have closer peers in their
// tables. full counts the closest peers without room for a connection.
func checkAnswers(found, answers, full int) error {
	near := min(searchDepth, found)
	switch {
	case answers == 0:
		return fault.New("", fault.Unavailable, "no answer from the closest peers: check the network connection, then retry")
	case 2*full > near, full > 0 && found < Replicas:
		return fault.New("", fault.Unavailable, "%d of the %d closest peers have no room for a connection: retry later", full, near)
	}
	return nil
}

// run sends requests until the search is done or ctx ends. It waits for the end of its requests.
func (f *finder) run(ctx context.Context, key string, s *search) {
	var requests sync.WaitGroup
	defer requests.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: slow requests end at once
	replies := make(chan reply)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !s.done() {
		now := time.Now()
		for _, id := range s.next(now) {
			requests.Go(func() {
				r := f.ask(ctx, key, id)
				select {
				case replies <- r:
				case <-ctx.Done():
				}
			})
		}
		if at, ok := s.nextDeadline(now); ok {
			timer.Reset(at.Sub(now))
		}
		select {
		case r := <-replies:
			if ctx.Err() != nil {
				return // the end of ctx caused the reply
			}
			f.handle(s, r)
		case <-timer.C:
			f.prober.Suspect(s.overdue(time.Now())...)
		case <-ctx.Done():
			return
		}
	}
}

// handle updates the search, the routing table and the prober after a reply.
func (f *finder) handle(s *search, r reply) {
	if !s.setResult(r.from, r.state, time.Now()) {
		return
	}
	table := f.dht.RoutingTable()
	switch r.state {
	case replied:
		f.prober.Responded(r.from)
		table.UpdateLastSuccessfulOutboundQueryAt(r.from, time.Now())
		table.UpdateLastUsefulAt(r.from, time.Now())
		if f.admits(f.dht, r.from) {
			_, _ = table.TryAddPeer(r.from, true, false) // fails on a full bucket, which is normal
		}
	case silent:
		if r.gone {
			table.RemovePeer(r.from)
		}
		f.prober.Suspect(r.from)
	}
	for _, id := range r.closer {
		s.add(id, f.prober.Avoid(id))
	}
}

// ask requests the peers closest to key from one peer.
func (f *finder) ask(ctx context.Context, key string, id peer.ID) reply {
	if _, err := f.host.Network().DialPeer(ctx, id); err != nil {
		if dial.NoRoom(err) {
			return reply{from: id, state: noRoom, gone: true}
		}
		return reply{from: id, state: silent, gone: true}
	}
	closer, err := f.messages.GetClosestPeers(ctx, id, peer.ID(key))
	if err != nil {
		return reply{from: id, state: stateOf(err)}
	}
	return reply{from: id, state: replied, closer: f.learnAddresses(closer)}
}

// stateOf separates a lack of room, here or there, from a dead peer.
func stateOf(err error) state {
	if dial.SaysNoRoom(err) {
		return noRoom
	}
	return silent
}

// learnAddresses stores the addresses of an answer, like kad-dht, and returns its peers.
func (f *finder) learnAddresses(infos []*peer.AddrInfo) []peer.ID {
	infos = infos[:min(len(infos), maxCloser)]
	if f.open {
		infos = limitAddressGroups(infos)
	}
	ids := make([]peer.ID, 0, len(infos))
	for _, p := range infos {
		addrs := p.Addrs
		if f.open {
			addrs = address.Public(addrs)
			if !address.Direct(append(f.host.Peerstore().Addrs(p.ID), addrs...)) {
				continue
			}
		}
		if p.ID != f.host.ID() && f.host.Network().Connectedness(p.ID) != network.Connected {
			f.host.Peerstore().AddAddrs(p.ID, addrs, peerstore.TempAddrTTL)
		}
		ids = append(ids, p.ID)
	}
	return ids
}

// limitAddressGroups removes the peers of IP groups with more peers in one answer than the routing table
// accepts from one group.
func limitAddressGroups(infos []*peer.AddrInfo) []*peer.AddrInfo {
	groups := make(map[peerdiversity.PeerIPGroupKey]map[peer.ID]bool)
	each := func(p *peer.AddrInfo, do func(peerdiversity.PeerIPGroupKey)) {
		for _, a := range p.Addrs {
			if ip, err := manet.ToIP(a); err == nil {
				do(peerdiversity.IPGroupKey(ip))
			}
		}
	}
	for _, p := range infos {
		each(p, func(g peerdiversity.PeerIPGroupKey) {
			if groups[g] == nil {
				groups[g] = make(map[peer.ID]bool)
			}
			groups[g][p.ID] = true
		})
	}
	var out []*peer.AddrInfo
	for _, p := range infos {
		crowded := false
		each(p, func(g peerdiversity.PeerIPGroupKey) {
			crowded = crowded || g != "" && len(groups[g]) > amino.DefaultMaxPeersPerIPGroup
		})
		if !crowded {
			out = append(out, p)
		}
	}
	return out
}
