package coord

import "encoding/hex"

// GroupID is the id of a group: GroupIDBytes bytes.
type GroupID string

// GroupIDBytes is the length of a GroupID.
const GroupIDBytes = 32

// MaxAbsorbed bounds the groups that a group remembers to have taken over. The oldest leave first.
const MaxAbsorbed = 64

// String returns the id in hex.
func (g GroupID) String() string { return hex.EncodeToString([]byte(g)) }

// Dissolve ends the group in favour of another one of the network. All leases end with their keys, and no
// waiting claim is granted. Afterwards the group refuses every command except the RaiseRevision that resumes
// it, so its last revision is final: it gives no token any more. See Dissolution.
//
// Errors: Conflict for user data without Force, or for a successor that this group absorbed; Invalid.
type Dissolve struct {
	Successor GroupID
	Force     bool // in spite of user data
}

// RaiseRevision is the survivor's part of a merge. The revision becomes To at least, so that every later token
// is above all tokens of the absorbed groups. As in a new incarnation, the history before a leap is compacted. A claim
// that waits has a token of before, so a leap takes it out of its queue. The first raise for a group always leaps: its
// members' watches must not go on in another group's history.
//
// Resume is for groups that dissolved in favour of each other. All of them are frozen then, and one
// continues: Resume names the log index of its Dissolve, and undoes it.
//
// Errors: Conflict for a Resume of anything else; Invalid, LimitReached.
type RaiseRevision struct {
	To       Revision
	Absorbed []GroupID
	Resume   uint64
}

// Dissolution describes the end of a group; zero for a living one.
type Dissolution struct {
	Successor GroupID
	Index     uint64   // log index of the Dissolve
	Final     Revision // the last one
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
