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

// Succession is one peer's word that a group which had lost its majority for good goes on with what
// that peer has, as its only voter at first. The group keeps its id; its members of before are
// of an older incarnation and must not take part in the new one.
//
// It is worth what the peer is: only one that may be a voter is believed.
type Succession struct {
	Group       GroupID
	Incarnation uint64  // from 1; the founding is 0
	Member      uint64  // raft id that the peer took for it, drawn at random: so two can be told apart
	Peer        peer.ID // whose word it is
	Signature   []byte  // Ed25519, over the hash of "bh-succeed" and all before
}

const successionBytes = len(GroupID{}) + 16 + peerIDBytes + ed25519.SignatureSize

// Succeed gives the word of the peer that has key.
//
// Errors: Invalid for what makes no sense.
func Succeed(key crypto.PrivKey, group GroupID, incarnation, member uint64) (Succession, error) {
	const op = "founding.Succeed"
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return Succession{}, fault.As(op, fault.Invalid, err)
	}
	s := Succession{Group: group, Incarnation: incarnation, Member: member, Peer: self}
	if s.Signature, err = key.Sign(s.digest()); err != nil {
		return Succession{}, fault.As(op, fault.Internal, err)
	}
	_, err = DecodeSuccession(s.Encode())
	return s, fault.Wrap(op, err)
}

// IsZero reports whether there was none: the group lives as it was founded.
func (s Succession) IsZero() bool { return s.Incarnation == 0 }

// Encode gives the one encoding: all parts one after the other.
func (s Succession) Encode() []byte { return append(s.words(), s.Signature...) }

func (s Succession) words() []byte {
	b := append(make([]byte, 0, successionBytes), s.Group[:]...)
	b = binary.BigEndian.AppendUint64(b, s.Incarnation)
	b = binary.BigEndian.AppendUint64(b, s.Member)
	return append(b, s.Peer...)
}

func (s Succession) digest() []byte {
	h := sha256.New()
	h.Write([]byte("bh-succeed"))
	h.Write(s.words())
	return h.Sum(nil)
}

// DecodeSuccession reads what Encode wrote, from anywhere, and verifies the signature. Whether the
// peer may give its word is for the caller to ask.
//
// Errors: Invalid; Unauthentic.
func DecodeSuccession(b []byte) (Succession, error) {
	const op = "founding.DecodeSuccession"
	var s Succession
	if len(b) != successionBytes {
		return s, fault.Wrap(op, fault.Invalidf("succession", len(b), "must have %d bytes", successionBytes))
	}
	rest := b[copy(s.Group[:], b):]
	s.Incarnation, s.Member = binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])
	s.Peer, s.Signature = peer.ID(rest[16:16+peerIDBytes]), rest[16+peerIDBytes:]
	key, ok := publicKey(s.Peer)
	if !ok || s.Incarnation == 0 || s.Member == 0 || s.Group.IsZero() {
		return Succession{}, fault.Wrap(op, fault.Invalidf("succession", nil, "names no group, incarnation, member or peer"))
	}
	if !ed25519.Verify(key, s.digest(), s.Signature) {
		return Succession{}, fault.Wrap(op, unauthentic(s.Peer.String(), "not the signature of the peer that succeeds"))
	}
	return s, nil
}

// Keep makes a succession that is known outlast this process, in a file of the directory: whoever has
// heard of it once does not go back.
//
// Errors: Internal; the process must end.
func (s Succession) Keep(fsys vfs.FS, dir string) error {
	return fault.As("founding.Keep", fault.Internal, writeFile(fsys, fsys.PathJoin(dir, successionFile), s.Encode()))
}

const successionFile = "succession"

// Kept gives the succession that was kept last in the directory, the zero one if there is none.
//
// Errors: Internal for a file that is not what was written.
func Kept(fsys vfs.FS, dir string) (Succession, error) {
	b, err := readFile(fsys, fsys.PathJoin(dir, successionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Succession{}, nil
	}
	var s Succession
	if err == nil {
		s, err = DecodeSuccession(b)
	}
	return s, fault.As("founding.Kept", fault.Internal, err)
}
