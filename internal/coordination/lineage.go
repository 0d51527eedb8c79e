package coordination

import (
	"crypto/sha256"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
)

// lineage is a group in one incarnation. Members of two incarnations have nothing to do with each
// other: not the name of the folder, not the protocol, not a handshake. Only what they tell
// of the group, its certificate and its id, is common to them.
type lineage struct {
	group bootstrap.GroupID
	began bootstrap.Succession // zero: with the founding
}

// folder is the name of the lineage on disk. It begins with the group's id, of which the headers of
// answers show the first bytes.
func (l lineage) folder() string {
	if l.began.IsZero() {
		return string(l.group[:])
	}
	return string(l.began.Encode())
}

// link is its name between members.
func (l lineage) link() [32]byte {
	if l.began.IsZero() {
		return l.group
	}
	return sha256.Sum256(l.began.Encode())
}

// wire is how others are told of it; nothing for the first incarnation.
func (l lineage) wire() []byte {
	if l.began.IsZero() {
		return nil
	}
	return l.began.Encode()
}

// lineageOf reads the name of a folder. Errors: Invalid.
func lineageOf(folder string) (l lineage, err error) {
	if len(folder) == len(l.group) {
		copy(l.group[:], folder)
		return l, nil
	}
	began, err := bootstrap.DecodeSuccession([]byte(folder))
	if err != nil {
		return l, fault.As("group.lineageOf", fault.Invalid, err)
	}
	return lineage{began.Group, began}, nil
}

// readLife reads what a peer says of the incarnation of a group. Errors: Invalid; Unauthentic.
func readLife(group bootstrap.GroupID, wire []byte) (lineage, error) {
	if len(wire) == 0 {
		return lineage{group: group}, nil
	}
	began, err := bootstrap.DecodeSuccession(wire)
	if err == nil && began.Group != group {
		err = fault.New("group.readLife", fault.Invalid, "the succession is of another group")
	}
	return lineage{group, began}, err
}
