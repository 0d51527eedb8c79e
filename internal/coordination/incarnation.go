package coordination

import (
	"crypto/sha256"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
)

// incarnation identifies a group and one of its incarnations. Members of two incarnations share no folder,
// protocol or handshake, only the group's description: its initial membership and its id.
type incarnation struct {
	group    bootstrap.GroupID
	recovery bootstrap.Recovery // zero: the bootstrap
}

// storageID names the incarnation on disk. It begins with the group's id, whose first bytes appear in the
// headers of answers.
func (l incarnation) storageID() string {
	if l.recovery.IsZero() {
		return string(l.group[:])
	}
	return string(l.recovery.Encode())
}

// protocolID names the incarnation between members.
func (l incarnation) protocolID() [32]byte {
	if l.recovery.IsZero() {
		return l.group
	}
	return sha256.Sum256(l.recovery.Encode())
}

// wire encodes the recovery record for other peers; empty for the first incarnation.
func (l incarnation) wire() []byte {
	if l.recovery.IsZero() {
		return nil
	}
	return l.recovery.Encode()
}

// incarnationOf decodes a storageID. Errors: Invalid.
func incarnationOf(folder string) (l incarnation, err error) {
	if len(folder) == len(l.group) {
		copy(l.group[:], folder)
		return l, nil
	}
	began, err := bootstrap.DecodeRecovery([]byte(folder))
	if err != nil {
		return l, fault.As("coordination.lineageOf", fault.Invalid, err)
	}
	return incarnation{began.Group, began}, nil
}

// decodeIncarnation decodes a peer's claim of the group's incarnation. Errors: Invalid; Unauthentic.
func decodeIncarnation(group bootstrap.GroupID, wire []byte) (incarnation, error) {
	if len(wire) == 0 {
		return incarnation{group: group}, nil
	}
	began, err := bootstrap.DecodeRecovery(wire)
	if err == nil && began.Group != group {
		err = fault.New("coordination.readLife", fault.Invalid, "recovery record of another group")
	}
	return incarnation{group, began}, err
}
