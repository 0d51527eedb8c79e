package coord

import "encoding/hex"

// GroupID is the id of a group: GroupIDBytes bytes.
type GroupID string

// GroupIDBytes is the length of a GroupID.
const GroupIDBytes = 32

// String returns the id in hex.
func (g GroupID) String() string { return hex.EncodeToString([]byte(g)) }

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
