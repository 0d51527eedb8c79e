package p2p

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/amino"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p-kbucket/peerdiversity"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	closerMost      = 2 * tableReplicas // peers believed of one answer
	maxUnresponsive = 1024
	avoidFirst      = 30 * time.Second // about what the prober takes to be sure
	avoidMost       = 5 * time.Minute  // ... after being silent again and again
	avoidMemory     = 10 * time.Minute // how often that was
)

// finder looks up peers over the DHT's own messages. kad-dht's lookup waits for dials of
// the dead until its deadline, forgets them then, and cannot tell a peer that is gone from
// one that it had no room to connect to; see search.
type finder struct {
	dht          *dht.IpfsDHT
	host         host.Host
	messages     *dhtpb.ProtocolMessenger
	open         bool // strangers on the Internet: filters as kad-dht applies them
	unresponsive *unresponsivePeers
	reach        reachabilitySource
}

// reach is the prober as lookups see it.
type reachabilitySource interface {
	// Suspect has peers measured soon, for there is reason to think that they are gone.
	Suspect(ids ...peer.ID)
	// Measured gives the verdict on a peer; false while there is none.
	Measured(id peer.ID) (records.Measured, bool)
}

func newFinder(d *dht.IpfsDHT, h host.Host, t profileSettings, known *unresponsivePeers) (*finder, error) {
	messages, err := dhtpb.NewProtocolMessenger(d.MessageSender())
	return &finder{dht: d, host: h, messages: messages, open: t.open, unresponsive: known}, err
}

// reply is what came of asking a peer.
type reply struct {
	from   peer.ID
	became state
	closer []peer.ID
	gone   bool // it cannot even be dialed
}

// closest is a lookup. The error is Unavailable when too few of the closest peers could be
// asked to be sure, and ctx's when that ended; what was found comes with it.
func (f *finder) closest(ctx context.Context, key string) ([]peer.ID, error) {
	s := newSearch(key, f.host.ID())
	for _, id := range f.dht.RoutingTable().NearestPeers(s.target, tableReplicas) {
		s.add(id, f.avoids(id))
	}
	if len(s.order) == 0 {
		return nil, kb.ErrLookupFailure
	}
	f.run(ctx, key, s)
	found, answers, bars := s.found()
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	if err := f.checkAnswers(len(found), answers, bars); err != nil {
		return found, err
	}
	f.dht.RoutingTable().ResetCplRefreshedAtForID(s.target, time.Now())
	return found, nil
}

// checkAnswers tells whether what was found are the closest, of which so many answered and so many
// could not be asked: there may be closer ones that only those know.
func (f *finder) checkAnswers(found, answers, bars int) error {
	near := min(searchDepth, found)
	switch {
	case answers == 0:
		return fault.New("", fault.Unavailable, "none of the closest peers answered")
	case 2*bars > near, bars > 0 && found < tableReplicas:
		return fault.New("", fault.Unavailable, "%d of the %d closest peers could not be asked: no room for connections", bars, near)
	}
	return nil
}

// run asks until the search is done or ctx ends, and waits for everybody asked.
func (f *finder) run(ctx context.Context, key string, s *search) {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: who is slow is not waited for
	replies := make(chan reply)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !s.done() {
		now := time.Now()
		for _, id := range s.next(now) {
			asking.Go(func() {
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
				return // no fault of the peer's
			}
			f.learn(s, r)
		case <-timer.C:
			f.markUnresponsive(s.overdue(time.Now()))
		case <-ctx.Done():
			return
		}
	}
}

// learn takes a reply in.
func (f *finder) learn(s *search, r reply) {
	if !s.setResult(r.from, r.became, time.Now()) {
		return
	}
	table := f.dht.RoutingTable()
	switch r.became {
	case replied:
		f.unresponsive.clear(r.from)
		table.UpdateLastSuccessfulOutboundQueryAt(r.from, time.Now())
		table.UpdateLastUsefulAt(r.from, time.Now())
		if !f.open || dht.PublicRoutingTableFilter(f.dht, r.from) {
			_, _ = table.TryAddPeer(r.from, true, false) // a full bucket is no error
		}
	case silent:
		if r.gone {
			table.RemovePeer(r.from)
		}
		f.markUnresponsive([]peer.ID{r.from})
	}
	for _, id := range r.closer {
		s.add(id, f.avoids(id))
	}
}

// markUnresponsive remembers who was silent, and has them measured: they leave the table when they
// are found dead, and lookups ask them again when they are not.
func (f *finder) markUnresponsive(ids []peer.ID) {
	for _, id := range ids {
		f.unresponsive.add(id, time.Now())
	}
	f.reach.Suspect(ids...)
}

// avoids reports whether a peer was silent lately, or was measured and is.
func (f *finder) avoids(id peer.ID) bool {
	if f.unresponsive.has(id, time.Now()) {
		return true
	}
	m, ok := f.reach.Measured(id)
	return ok && !m.Reachable
}

// ask has one peer tell whom it knows closer to a key.
func (f *finder) ask(ctx context.Context, key string, id peer.ID) reply {
	if err := f.host.Connect(ctx, peer.AddrInfo{ID: id}); err != nil {
		r := reply{from: id, became: stateOf(err), gone: true}
		if errors.Is(err, io.EOF) {
			r.became = noRoom // it took the connection and closed it again
		}
		return r
	}
	closer, err := f.messages.GetClosestPeers(ctx, id, peer.ID(key))
	if err != nil {
		return reply{from: id, became: stateOf(err)}
	}
	return reply{from: id, became: replied, closer: f.learnAddresses(closer)}
}

// stateOf tells a peer without room, or this peer's own want of it, from one that is gone.
func stateOf(err error) state {
	var closed *network.ConnError
	switch {
	case errors.Is(err, network.ErrResourceLimitExceeded):
		return noRoom
	case errors.As(err, &closed) && (closed.ErrorCode == network.ConnResourceLimitExceeded || closed.ErrorCode == network.ConnGarbageCollected):
		return noRoom
	default:
		return silent
	}
}

// learnAddresses takes the addresses of an answer in, as kad-dht does, and gives its peers.
func (f *finder) learnAddresses(told []*peer.AddrInfo) []peer.ID {
	told = told[:min(len(told), closerMost)]
	if f.open {
		told = limitAddressGroups(told)
	}
	ids := make([]peer.ID, 0, len(told))
	for _, p := range told {
		addrs := p.Addrs
		if f.open {
			addrs = publicOnly(addrs)
			known := f.host.Peerstore().Addrs(p.ID)
			if !dht.PublicQueryFilter(f.dht, peer.AddrInfo{ID: p.ID, Addrs: append(known, addrs...)}) {
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

// limitAddressGroups leaves out the peers of address groups that have more in an answer than the
// routing table would take of one.
func limitAddressGroups(told []*peer.AddrInfo) []*peer.AddrInfo {
	groups := make(map[peerdiversity.PeerIPGroupKey]map[peer.ID]bool)
	each := func(p *peer.AddrInfo, do func(peerdiversity.PeerIPGroupKey)) {
		for _, a := range p.Addrs {
			if ip, err := manet.ToIP(a); err == nil {
				do(peerdiversity.IPGroupKey(ip))
			}
		}
	}
	for _, p := range told {
		each(p, func(g peerdiversity.PeerIPGroupKey) {
			if groups[g] == nil {
				groups[g] = make(map[peer.ID]bool)
			}
			groups[g][p.ID] = true
		})
	}
	var out []*peer.AddrInfo
	for _, p := range told {
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

// unresponsivePeers are the peers that were silent lately. It is safe for concurrent use.
type unresponsivePeers struct {
	mu    sync.Mutex // guards what the entries hold
	known *lru.Cache[peer.ID, unresponsive]
}

// unresponsive of a peer doubles whenever it is silent again after one.
type unresponsive struct {
	until time.Time
	last  time.Duration
}

func newUnresponsivePeers() *unresponsivePeers {
	known, err := lru.New[peer.ID, unresponsive](maxUnresponsive)
	if err != nil {
		panic("p2p: " + err.Error()) // impossible: the size is a positive constant
	}
	return &unresponsivePeers{known: known}
}

func (s *unresponsivePeers) add(id peer.ID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.known.Get(id)
	switch {
	case ok && now.Before(old.until):
		return
	case ok && now.Sub(old.until) < avoidMemory:
		old.last = min(2*old.last, avoidMost)
	default:
		old.last = avoidFirst
	}
	s.known.Add(id, unresponsive{until: now.Add(old.last), last: old.last})
}

func (s *unresponsivePeers) has(id peer.ID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.known.Peek(id)
	return ok && now.Before(one.until)
}

func (s *unresponsivePeers) clear(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Remove(id)
}
