package coord

import "encoding/hex"

// GroupID is the id of a group: GroupIDBytes bytes.
type GroupID string

// GroupIDBytes is the length of a GroupID.
const GroupIDBytes = 32

// String returns the id in hex.
func (g GroupID) String() string { return hex.EncodeToString([]byte(g)) }

// Dissolve ends the group in favour of another one of the network. All leases end with their keys, and no
// waiting claim is granted. Afterwards the group is frozen: it refuses every command except a second Dissolve, and the
// RaiseRevision that resumes it. So its last revision is final: it gives no token any more. See Dissolution.
//
// The members go over to the successor once it has reached that revision, so that no later token is below one that the group
// gave. Reached says which revision the successor has reached. A group that gives itself up names it at once. An operator
// freezes the group first, raises the successor, and then names it in a second Dissolve.
//
// Errors: Conflict for user data without Force, for a Reached below the revision of the group, or for another successor than the
// one of a frozen group; Invalid.
type Dissolve struct {
	Successor GroupID
	Force     bool // in spite of user data
	Reached   Revision
}

// RaiseRevision raises the revision to To at least, so that every later token is above all tokens of a group that ends in
// favour of this one. It always leaps by 1 at least. As in a new incarnation, the history before a leap is compacted: watches of
// the other group must not go on in this history. A claim that waits has a token of before, so a leap takes it out of its queue.
//
// Resume names the log index of the Dissolve of a frozen group, and undoes it.
//
// Errors: Conflict for a Resume of anything else; Invalid, LimitReached.
type RaiseRevision struct {
	To     Revision
	Resume uint64
}

// Dissolution describes the end of a group; zero for a living one.
type Dissolution struct {
	Successor GroupID
	Index     uint64   // log index of the Dissolve
	Final     Revision // the last one
	Released  bool     // the successor has reached Final: the members go over
}

// Over reports whether the group is dissolved.
func (d Dissolution) Over() bool { return d.Index != 0 }

// UserData counts what applications keep in a group. The peers' own leases and directory entries are none: a
// peer registers them again in another group.
type UserData struct {
	Locks  int `json:"locks"`
	Leases int `json:"leases"`
	Keys   int `json:"keys"`
}

// Any reports whether there is user data.
func (u UserData) Any() bool { return u != UserData{} }

func (*Dissolve) op()      {}
func (*RaiseRevision) op() {}
