package upkeep

import (
	"context"
	"fmt"
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

// WatchSpace keeps the condition space_low of a member until ctx ends. Its operator has time to act before commands fail. called
// names an owner in a sentence.
func WatchSpace(ctx context.Context, at *member.Member, called func(owner string) string, conditions *condition.Set) {
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
			conditions.Raise(condition.SpaceLow, fault.Problem{
				What:   fmt.Sprintf("the %s of the group use over %d %% of their room; most belong to %s", fullest.Name, int(spaceLow*100), called(fullest.Most)),
				Effect: effect, State: fault.Coming, Remedy: "End or delete some, or raise coordination.limits at the voters",
			})
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
// A group of one or two voters never had a reserve. count returns the voters, and when a leader counted them: one old count is no
// second witness. Without a leader nothing is known, and an active condition says so until no_quorum takes its place or a leader
// says more. silent names those without contact, as far as this member knows, and whether the first one runs.
func WatchReserve(ctx context.Context, count func() (membership.Tolerance, time.Time), silent func() (names []string, runs bool), conditions *condition.Set) {
	defer conditions.Clear(condition.NoReserve) // a client does not know
	var lost time.Time                          // the first count without a reserve
	var before string
	for pause.For(ctx, counting) {
		t, at := count()
		switch {
		case !t.Quorate():
			if lost = (time.Time{}); before != "" {
				conditions.Raise(condition.NoReserve, fault.Problem{
					What: "the group has no leader at the moment; before, " + before, Effect: "locks, leases and keys wait for one",
				})
			}
			continue
		case t.Voters < 3 || t.Failures() > 0:
			lost, before = time.Time{}, ""
			conditions.Clear(condition.NoReserve)
			continue
		case lost.IsZero():
			lost = at
		}
		if at.Sub(lost) < missed && before == "" {
			continue
		}
		before = fmt.Sprintf("%d of %d voters of the group answered", t.Active, t.Voters)
		is := fault.Problem{
			What: fmt.Sprintf("%d of %d voters of the group answer", t.Active, t.Voters), State: fault.Coming,
			Effect: "the loss of another one stops locks, leases and keys", Remedy: "`blackholed group members` names the silent one: start it",
		}
		which := "SILENT_PEER"
		if names, runs := silent(); len(names) > 0 {
			which = names[0]
			is.What += ", and the leader does not hear " + strings.Join(names, ", ")
			is.Remedy = "Start it if it is down, and check the network to it if it runs"
			if runs {
				is.Remedy = "It runs: `blackholed doctor` there says why its member takes no part"
			}
		}
		is.Remedy += "; or give its vote to another peer by `blackholed group add NEW_PEER` and `blackholed group replace " + which + " NEW_PEER`"
		conditions.Raise(condition.NoReserve, is)
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
