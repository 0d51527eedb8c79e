package coordination

import (
	"sync"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/pkg/network"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Identity is this peer: its key, and the name that it shows to others.
type Identity struct {
	Key  crypto.PrivKey
	Name network.PeerName // empty: none
}

// acquaintances holds what peers say of themselves in questions and answers about the group: names, and at the leader the
// count of voters. Nothing here decides anything; it is shown to operators.
type acquaintances struct {
	mu      sync.Mutex
	names   map[peer.ID]network.PeerName
	counted membership.Tolerance
	by      peer.ID // the leader that counted
}

// heard notes the name of a peer. An invalid one counts as none: it comes from the network and goes to terminals.
func (a *acquaintances) heard(from peer.ID, name string) {
	n := network.PeerName(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n.Validate() != nil {
		delete(a.names, from)
		return
	}
	if a.names == nil {
		a.names = map[peer.ID]network.PeerName{}
	}
	if _, known := a.names[from]; known || len(a.names) < maxClients {
		a.names[from] = n
	}
}

// count notes the voters that a leader counts. Other peers count nothing.
func (a *acquaintances) count(from peer.ID, resp *groupv1.InfoResponse) {
	if resp.GetVoters() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by, a.counted = from, membership.Tolerance{Voters: int(resp.GetVoters()), Heard: int(resp.GetVotersHeard())}
}

// tolerance returns the last count of a leader; zero if this leader was not asked yet.
func (a *acquaintances) tolerance(leader peer.ID) membership.Tolerance {
	a.mu.Lock()
	defer a.mu.Unlock()
	if leader == "" || a.by != leader {
		return membership.Tolerance{}
	}
	return a.counted
}

// nameOf returns the name that a peer gives itself; empty if unknown.
func (q *inquiry) nameOf(id peer.ID) string {
	if id == q.plane.self {
		return string(q.plane.config.Self.Name)
	}
	q.known.mu.Lock()
	defer q.known.mu.Unlock()
	return string(q.known.names[id])
}

// calls returns a peer's id with its name, for a sentence.
func (q *inquiry) calls(id string) string {
	if decoded, err := peer.Decode(id); err == nil {
		if name := q.nameOf(decoded); name != "" {
			return id + " (" + name + ")"
		}
	}
	return id
}

// tolerance counts the voters: at the leader now, elsewhere as the leader answered last, some 10 s ago at most.
func (q *inquiry) tolerance() membership.Tolerance {
	if l := q.plane.here.Load(); l != nil {
		if s := l.member.Status(); s.Leads {
			return membership.ToleranceOf(progressOf(s))
		}
	}
	return q.known.tolerance(q.plane.routing.Known().Peer)
}
