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

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery is the record of a forced recovery: one peer's signed statement that a group, after the permanent
// loss of its majority, continues from this peer's disk with this peer as its only voter. The group keeps its
// id; members of older incarnations must not take part.
//
// Only the word of an eligible peer counts.
type Recovery struct {
	Group       GroupID
	Incarnation uint64  // from 1; the bootstrap is 0
	Member      uint64  // raft id of the peer, drawn at random for this recovery, which distinguishes two of them
	Peer        peer.ID // signer
	Signature   []byte  // Ed25519, over the hash of "bh-recovery" and all fields above
}

const recoveryBytes = len(GroupID{}) + 16 + peerIDBytes + ed25519.SignatureSize

// NewRecovery signs a record with key.
//
// Errors: Invalid.
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

// IsZero reports the absence of a recovery: the first incarnation.
func (s Recovery) IsZero() bool { return s.Incarnation == 0 }

// Encode returns the canonical encoding: all fields in order.
func (s Recovery) Encode() []byte { return append(s.signedPart(), s.Signature...) }

func (s Recovery) signedPart() []byte {
	b := append(make([]byte, 0, recoveryBytes), s.Group[:]...)
	b = binary.BigEndian.AppendUint64(b, s.Incarnation)
	b = binary.BigEndian.AppendUint64(b, s.Member)
	return append(b, s.Peer...)
}

func (s Recovery) digest() []byte {
	h := sha256.New()
	h.Write([]byte("bh-recovery"))
	h.Write(s.signedPart())
	return h.Sum(nil)
}

// DecodeRecovery decodes a record of any origin and verifies its signature. The caller must check the peer's
// right to it.
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
		return Recovery{}, fault.Wrap(op, fault.New("", fault.Unauthentic, "not the signature of the peer that recovers the group"))
	}
	return s, nil
}

// Save stores a known record in the directory, so that the peer never returns to an older incarnation.
//
// Errors: Internal; the process must end.
func (s Recovery) Save(fsys vfs.FS, dir string) error {
	return fault.As("bootstrap.Recovery.Save", fault.Internal,
		writeFile(fsys, fsys.PathJoin(dir, recoveryFile), recoveryFormat().Seal(s.Encode())))
}

const recoveryFile = "recovery"

// recoveryFormat is the version of the file: an encoded record.
func recoveryFormat() store.Format[[]byte] { return store.Format[[]byte]{Name: "recovery record"} }

// LoadRecovery loads the stored record; zero without one.
//
// Errors: Unsupported for a file of a later version; Internal for a damaged one.
func LoadRecovery(fsys vfs.FS, dir string) (s Recovery, err error) {
	const op = "bootstrap.LoadRecovery"
	path := fsys.PathJoin(dir, recoveryFile)
	b, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, nil
	}
	if err == nil {
		b, _, err = recoveryFormat().Unseal(path, b)
	}
	if fault.KindOf(err) == fault.Unsupported {
		return Recovery{}, fault.Wrap(op, err)
	}
	if err == nil {
		s, err = DecodeRecovery(b)
	}
	return s, fault.As(op, fault.Internal, err)
}
