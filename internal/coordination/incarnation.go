package coordination

import (
	"crypto/sha256"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
)

// incarnation is a group in one incarnation. Members of two incarnations have nothing to do with each
// other: not the name of the folder, not the protocol, not a handshake. Only what they tell
// of the group, its certificate and its id, is common to them.
type incarnation struct {
	group    bootstrap.GroupID
	recovery bootstrap.Recovery // zero: with the founding
}

// storageID is the name of the lineage on disk. It begins with the group's id, of which the headers of
// answers show the first bytes.
func (l incarnation) storageID() string {
	if l.recovery.IsZero() {
		return string(l.group[:])
	}
	return string(l.recovery.Encode())
}

// protocolID is its name between members.
func (l incarnation) protocolID() [32]byte {
	if l.recovery.IsZero() {
		return l.group
	}
	return sha256.Sum256(l.recovery.Encode())
}

// wire is how others are told of it; nothing for the first incarnation.
func (l incarnation) wire() []byte {
	if l.recovery.IsZero() {
		return nil
	}
	return l.recovery.Encode()
}

// incarnationOf reads the name of a folder. Errors: Invalid.
func incarnationOf(folder string) (l incarnation, err error) {
	if len(folder) == len(l.group) {
		copy(l.group[:], folder)
		return l, nil
	}
	began, err := bootstrap.DecodeRecovery([]byte(folder))
	if err != nil {
		return l, fault.As("group.lineageOf", fault.Invalid, err)
	}
	return incarnation{began.Group, began}, nil
}

// decodeIncarnation reads what a peer says of the incarnation of a group. Errors: Invalid; Unauthentic.
func decodeIncarnation(group bootstrap.GroupID, wire []byte) (incarnation, error) {
	if len(wire) == 0 {
		return incarnation{group: group}, nil
	}
	began, err := bootstrap.DecodeRecovery(wire)
	if err == nil && began.Group != group {
		err = fault.New("group.readLife", fault.Invalid, "the succession is of another group")
	}
	return incarnation{group, began}, err
}
