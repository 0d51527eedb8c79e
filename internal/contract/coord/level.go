package coord

import "fmt"

// FirstLevel is the feature level of a new group.
const FirstLevel uint32 = 1

// Levels is the range of feature levels that a program supports. The feature level of a group decides
// which commands its log may hold, and the format of its snapshots. It is at most the highest level
// that every member and client supports, and it never falls.
type Levels struct {
	Min uint32 `json:"min"`
	Max uint32 `json:"max"`
}

// Supports reports whether the program can take part in a group of a level.
func (l Levels) Supports(level uint32) bool { return l.Min <= level && level <= l.Max }

// Valid reports whether the range holds a level.
func (l Levels) Valid() bool { return l.Min >= FirstLevel && l.Min <= l.Max }

// String implements fmt.Stringer.
func (l Levels) String() string {
	switch {
	case !l.Valid():
		return "none"
	case l.Min == l.Max:
		return fmt.Sprint(l.Min)
	}
	return fmt.Sprintf("%d to %d", l.Min, l.Max)
}

// HeldBack names a peer that keeps the feature level of a group below the leader's highest.
type HeldBack struct {
	Peer string `json:"peer_id"`
	// Levels that the peer announced; zero while the leader has not heard from it.
	Levels Levels `json:"levels"`
}
