package coord

import (
	"context"
	"io"
	"time"
)

// Header names the answering member and the state of the group. Ids are strings in JSON, because
// they have more digits than a JavaScript number.
type Header struct {
	Group    uint64   `json:"cluster_id,string"` // the first eight bytes of the group's id
	Member   uint64   `json:"member_id,string"`  // that answered
	Revision Revision `json:"revision"`
	Term     uint64   `json:"raft_term"`
}

// NoLimit is the wait of Acquire that lasts as long as its context.
const NoLimit time.Duration = -1

// Admin reports the state of the group itself.
type Admin interface {
	// Group returns this peer's knowledge of the group. Without a group it succeeds, and Missing
	// explains the state.
	Group(ctx context.Context) (GroupState, error)

	// ChangeMembers carries out an operator's order, or with DryRun says what it would do. It repeats itself at the next
	// leader after a transfer.
	//
	// Errors: Invalid; NotFound, Exists and Conflict with field "peer_id" or "with" for an order that does not fit
	// the members; Forbidden for an order of a peer that is not eligible; Unavailable.
	ChangeMembers(ctx context.Context, c MemberChange) (MemberOutcome, error)

	// Backup writes a consistent snapshot of the whole group to w: it includes all changes answered before the call. Without
	// an error it is complete; after an error w may have a part of it.
	Backup(ctx context.Context, w io.Writer) error
}

// GroupState is the present state of the group.
type GroupState struct {
	ID          string   `json:"group_id"`          // hex; empty without a group
	Phase       string   `json:"phase"`             // off, founding, joining, member, client, removed, stopped, outlived
	Missing     string   `json:"missing,omitempty"` // reason of an outage
	Term        uint64   `json:"term"`
	Leader      string   `json:"leader"` // peer id; empty if unknown
	Voters      []Member `json:"voters"`
	Learners    []Member `json:"learners"`
	Revision    Revision `json:"revision"`
	Incarnation uint64   `json:"incarnation"`
	Leases      int      `json:"leases"`
	Locks       int      `json:"locks"`
	Keys        int      `json:"keys"`
	// Level is the feature level; HeldBackBy names the peers that keep it below the leader's highest.
	Level      uint32     `json:"feature_level"`
	HeldBackBy []HeldBack `json:"held_back_by,omitempty"`
	// Survives is the number of voters that may fail now without a loss of the majority; 0 also while unknown.
	// Tolerance says it in words, "2 of 3 voters: no failure"; empty while unknown.
	Survives  int    `json:"failures_survived"`
	Tolerance string `json:"tolerance,omitempty"`
	// Removed lists the first 100 peers that operators keep out of the group.
	Removed []string `json:"removed,omitempty"`
}

// NameOf returns the name that a member gives itself; empty if unknown.
func (s GroupState) NameOf(peer string) string {
	for _, members := range [][]Member{s.Voters, s.Learners} {
		for _, m := range members {
			if m.Peer == peer {
				return m.Name
			}
		}
	}
	return ""
}

// Member is a peer of the group.
type Member struct {
	Peer    string `json:"peer_id"`
	ID      uint64 `json:"member_id,string"`
	Applied uint64 `json:"applied,omitempty"`   // log index, from the leader's view; 0 means unknown
	Active  bool   `json:"active"`              // heard of by the leader within an election timeout
	Name    string `json:"name,omitempty"`      // that the peer gives itself: a claim, no identity
	Address string `json:"address,omitempty"`   // where it can be dialed, from the leader's view; empty: unknown
	Lag     uint64 `json:"lag,omitempty"`       // committed entries that it lacks, from the leader's view
	Silent  int64  `json:"silent_ms,omitempty"` // since its last message to the leader, milliseconds
	Etcd    string `json:"etcd_url,omitempty"`  // where it answers clients of etcd, from the leader's view: a claim; empty: nowhere, or on its own host alone
}
