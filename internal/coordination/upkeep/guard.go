package upkeep

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	measuring = 10 * time.Second // between two looks at the pools
	spaceLow  = 0.8              // share of it that begins the condition
	spaceFree = 0.75             // share that ends it
)

// WatchSpace keeps the condition space_low of a member until ctx ends. Its operator has time to act before commands fail.
func WatchSpace(ctx context.Context, at *member.Member, conditions *condition.Set) {
	defer conditions.Clear(condition.SpaceLow) // a client does not know
	for pause.For(ctx, measuring) {
		var fullest machine.Pool
		at.View(func(m *machine.Machine) {
			for _, p := range machine.PoolsOf(m) {
				if p.Used > fullest.Used {
					fullest = p
				}
			}
		})
		effect := "what needs more fails when it is full"
		if fullest.Name == "clients" { // nobody is refused
			effect = "the owner with the most loses its idlest when it is full"
		}
		switch {
		case fullest.Used >= spaceLow:
			conditions.Raise(condition.SpaceLow, "the %s of the group use over %d %% of their room, and %s; most belong to %s: "+
				"end or delete some, or raise coordination.limits at the voters", fullest.Name, int(spaceLow*100), effect, fullest.Most)
		case fullest.Used < spaceFree:
			conditions.Clear(condition.SpaceLow)
		}
	}
}

const (
	counting = 2 * time.Second  // between two counts of the voters
	missed   = 10 * time.Second // of a silent voter until the condition: a restart is shorter
)

// WatchReserve keeps the condition no_reserve of a member until ctx ends: its group lost a voter, and the next loss stops it.
// A group of one or two voters never had a reserve. count returns the voters, zero without a leader: nothing is known then, and
// the condition stays until no_quorum takes its place or a leader says more. silent names those without contact, as far as this
// member knows.
func WatchReserve(ctx context.Context, count func() membership.Tolerance, silent func() []string, conditions *condition.Set) {
	defer conditions.Clear(condition.NoReserve) // a client does not know
	for lost := time.Duration(0); pause.For(ctx, counting); {
		t := count()
		if !t.Quorate() {
			continue
		}
		if t.Voters < 3 || t.Failures() > 0 {
			lost = 0
			conditions.Clear(condition.NoReserve)
			continue
		}
		if lost += counting; lost >= missed {
			which := "\"blackholed group members\" names the silent one"
			if names := silent(); len(names) > 0 {
				which = "no contact to " + strings.Join(names, ", ")
			}
			conditions.Raise(condition.NoReserve, "%d of %d voters of the group answer, and the loss of another one stops locks, leases and keys: %s. "+
				"Start it if it is down, check the network to it if it runs, or let another peer take its place with \"blackholed group replace SILENT_PEER NEW_PEER\"", t.Active, t.Voters, which)
		}
	}
}

const (
	// patience is how long other members may refuse this one for another process with its raft id: longer than they
	// keep the connection of a process that has ended.
	patience = 30 * time.Second
	// gap is the longest pause between two of these refusals.
	gap = 10 * time.Second
)

// Copies notices that another process runs as this member, as on a copied data directory. The process that the other members
// connected to first stays the member. It is safe for concurrent use.
type Copies struct {
	Now func() time.Time
	// Ask asks a peer that refused this member for another reason.
	Ask func(peer.ID)
	// Member is the raft id of this member.
	Member uint64
	// Stop ends this member.
	Stop func(error)

	mu          sync.Mutex
	first, last time.Time // of the refusals without a long pause
}

// lasts notes a refusal and reports whether they have lasted too long.
func (t *Copies) lasts(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.IsZero() || now.Sub(t.last) > gap {
		t.first = now
	}
	t.last = now
	return now.Sub(t.first) > patience
}

// Refused receives another member's refusal of this one.
func (t *Copies) Refused(by peer.ID, why *groupv1.MemberWelcome) {
	if why.GetResult() != groupv1.HandshakeResult_HANDSHAKE_RESULT_OTHER_PROCESS {
		t.Ask(by)
		return
	}
	if t.lasts(t.Now()) {
		t.Stop(fault.New("upkeep.Copies", fault.Conflict, "another process with this peer's key runs as its member %x of the group, as peer %s says: "+
			"the data directory was copied. To give this copy an identity of its own, end it, remove its data directory, and start it", t.Member, by))
	}
}
