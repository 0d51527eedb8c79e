package view

import (
	"crypto/sha256"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Incarnation identifies a group and one of its incarnations. Members of two incarnations share no folder,
// protocol or handshake, only the group's description: its initial membership and its id.
type Incarnation struct {
	Group    bootstrap.GroupID
	Recovery bootstrap.Recovery // zero: the bootstrap
}

// StorageID names the incarnation on disk. It begins with the group's id, whose first bytes appear in the
// headers of answers.
func (i Incarnation) StorageID() string {
	if i.Recovery.IsZero() {
		return string(i.Group[:])
	}
	return string(i.Recovery.Encode())
}

// ProtocolID names the incarnation between members.
func (i Incarnation) ProtocolID() [32]byte {
	if i.Recovery.IsZero() {
		return i.Group
	}
	return sha256.Sum256(i.Recovery.Encode())
}

// wire encodes the recovery record for other peers; empty for the first incarnation.
func (i Incarnation) wire() []byte {
	if i.Recovery.IsZero() {
		return nil
	}
	return i.Recovery.Encode()
}

// Stored decodes a StorageID. Errors: Invalid.
func Stored(id string) (i Incarnation, err error) {
	if len(id) == len(i.Group) {
		copy(i.Group[:], id)
		return i, nil
	}
	began, err := bootstrap.DecodeRecovery([]byte(id))
	if err != nil {
		return i, fault.As("view.Stored", fault.Invalid, err)
	}
	return Incarnation{began.Group, began}, nil
}

// decodeIncarnation decodes a peer's claim of the group's incarnation. Errors: Invalid; Unauthentic.
func decodeIncarnation(group bootstrap.GroupID, wire []byte) (Incarnation, error) {
	if len(wire) == 0 {
		return Incarnation{Group: group}, nil
	}
	began, err := bootstrap.DecodeRecovery(wire)
	if err == nil && began.Group != group {
		err = fault.New("view.decodeIncarnation", fault.Invalid, "recovery record of another group")
	}
	return Incarnation{group, began}, err
}
