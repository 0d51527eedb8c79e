package coordination

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	// twinPatience is how long other members may refuse this one for another process with its raft id: longer than they
	// hear a process that has ended.
	twinPatience = 30 * time.Second
	// twinPause is the longest pause between two of these refusals.
	twinPause = 10 * time.Second
)

// twin notices that another process runs as this member, as on a copied data directory. The process that the other members
// heard first stays the member. It is safe for concurrent use.
type twin struct {
	plane *Plane

	mu          sync.Mutex
	first, last time.Time // of the refusals without a long pause
}

// lasts notes a refusal and reports whether they have lasted too long.
func (t *twin) lasts(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.IsZero() || now.Sub(t.last) > twinPause {
		t.first = now
	}
	t.last = now
	return now.Sub(t.first) > twinPatience
}

// refused receives another member's refusal of this one.
func (t *twin) refused(by peer.ID, why *groupv1.MemberWelcome) {
	p := t.plane
	if why.GetResult() != groupv1.HandshakeResult_HANDSHAKE_RESULT_OTHER_PROCESS {
		p.inquiry.glance(by)
		return
	}
	if t.lasts(p.config.Now()) {
		p.failed.stop(fault.New("group.member", fault.Conflict, "another process with this peer's key runs as its member %x of the group, as peer %s says: "+
			"the data directory was copied. To give this copy an identity of its own, end it, remove its data directory, and start it", p.disk.Member(), by))
	}
}
