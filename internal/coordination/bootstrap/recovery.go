package bootstrap

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery is one peer's word that a group which had lost its majority for good goes on with what
// that peer has, as its only voter at first. The group keeps its id; its members of before are
// of an older incarnation and must not take part in the new one.
//
// It is worth what the peer is: only one that may be a voter is believed.
type Recovery struct {
	Group       GroupID
	Incarnation uint64  // from 1; the founding is 0
	Member      uint64  // raft id that the peer took for it, drawn at random: so two can be told apart
	Peer        peer.ID // whose word it is
	Signature   []byte  // Ed25519, over the hash of "bh-succeed" and all before
}

const recoveryBytes = len(GroupID{}) + 16 + peerIDBytes + ed25519.SignatureSize

// NewRecovery gives the word of the peer that has key.
//
// Errors: Invalid for what makes no sense.
func NewRecovery(key crypto.PrivKey, group GroupID, incarnation, member uint64) (Recovery, error) {
	const op = "bootstrap.NewRecovery"
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return Recovery{}, fault.As(op, fault.Invalid, err)
	}
	s := Recovery{Group: group, Incarnation: incarnation, Member: member, Peer: self}
	if s.Signature, err = key.Sign(s.digest()); err != nil {
		return Recovery{}, fault.As(op, fault.Internal, err)
	}
	_, err = DecodeRecovery(s.Encode())
	return s, fault.Wrap(op, err)
}

// IsZero reports whether there was none: the group lives as it was founded.
func (s Recovery) IsZero() bool { return s.Incarnation == 0 }

// Encode gives the one encoding: all parts one after the other.
func (s Recovery) Encode() []byte { return append(s.signedPart(), s.Signature...) }

func (s Recovery) signedPart() []byte {
	b := append(make([]byte, 0, recoveryBytes), s.Group[:]...)
	b = binary.BigEndian.AppendUint64(b, s.Incarnation)
	b = binary.BigEndian.AppendUint64(b, s.Member)
	return append(b, s.Peer...)
}

func (s Recovery) digest() []byte {
	h := sha256.New()
	h.Write([]byte("bh-succeed"))
	h.Write(s.signedPart())
	return h.Sum(nil)
}

// DecodeRecovery reads what Encode wrote, from anywhere, and verifies the signature. Whether the
// peer may give its word is for the caller to ask.
//
// Errors: Invalid; Unauthentic.
func DecodeRecovery(b []byte) (Recovery, error) {
	const op = "bootstrap.DecodeRecovery"
	var s Recovery
	if len(b) != recoveryBytes {
		return s, fault.Wrap(op, fault.Invalidf("recovery", len(b), "must have %d bytes", recoveryBytes))
	}
	rest := b[copy(s.Group[:], b):]
	s.Incarnation, s.Member = binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])
	s.Peer, s.Signature = peer.ID(rest[16:16+peerIDBytes]), rest[16+peerIDBytes:]
	key, ok := publicKey(s.Peer)
	if !ok || s.Incarnation == 0 || s.Member == 0 || s.Group.IsZero() {
		return Recovery{}, fault.Wrap(op, fault.Invalidf("recovery", nil, "names no group, incarnation, member or peer"))
	}
	if !ed25519.Verify(key, s.digest(), s.Signature) {
		return Recovery{}, fault.Wrap(op, unauthentic(s.Peer.String(), "not the signature of the peer that succeeds"))
	}
	return s, nil
}

// Save makes a succession that is known outlast this process, in a file of the directory: whoever has
// heard of it once does not go back.
//
// Errors: Internal; the process must end.
func (s Recovery) Save(fsys vfs.FS, dir string) error {
	return fault.As("bootstrap.Recovery.Save", fault.Internal, writeFile(fsys, fsys.PathJoin(dir, recoveryFile), s.Encode()))
}

const recoveryFile = "recovery"

// LoadRecovery gives the succession that was kept last in the directory, the zero one if there is none.
//
// Errors: Internal for a file that is not what was written.
func LoadRecovery(fsys vfs.FS, dir string) (Recovery, error) {
	b, err := readFile(fsys, fsys.PathJoin(dir, recoveryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, nil
	}
	var s Recovery
	if err == nil {
		s, err = DecodeRecovery(b)
	}
	return s, fault.As("bootstrap.LoadRecovery", fault.Internal, err)
}
