// Package identity is what a peer has from its operator: the secret key of its network, with the proofs of it, and a
// name for people.
package identity

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

const (
	// KeySize is the length of a key in bytes.
	KeySize = 32
	// NonceSize is the length of a nonce of a Challenge in bytes.
	NonceSize = 32
	// MaxKeys bounds the keys of one network, old ones included.
	MaxKeys = 8
)

// Key is the secret that the peers of a network share. It is never printed: a function hides its bytes from printers
// that use reflection too. Nil is no key.
type Key func() [KeySize]byte

// NewKey draws a key from a cryptographic source.
func NewKey(random io.Reader) (Key, error) {
	var b [KeySize]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return nil, fault.As("identity.NewKey", fault.Internal, err)
	}
	return keyOf(b), nil
}

func keyOf(b [KeySize]byte) Key { return func() [KeySize]byte { return b } }

// ParseKey returns the key that a text of Key.Text spells. Error: Invalid, without the text.
func ParseKey(s string) (Key, error) {
	var b [KeySize]byte
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) != KeySize {
		return nil, fault.Invalidf("", nil, "is not a key of a network: it needs %d bytes in base64url, which are %d characters",
			KeySize, base64.RawURLEncoding.EncodedLen(KeySize))
	}
	copy(b[:], raw)
	return keyOf(b), nil
}

// ParseKeys reads a file of keys: one in each line, 1 to MaxKeys, all different. Empty lines do not count. The first
// key proves, and all are accepted. Error: Invalid with the line, without its text.
func ParseKeys(text []byte) ([]Key, error) {
	var keys []Key
	for i, line := range bytes.Split(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		at := "line " + strconv.Itoa(i+1)
		k, err := ParseKey(string(line))
		switch {
		case err != nil:
			return nil, fault.In(at, err)
		case Contains(keys, k):
			return nil, fault.Invalidf(at, nil, "repeats a key")
		case len(keys) == MaxKeys:
			return nil, fault.Invalidf(at, nil, "is one key too many: at most %d", MaxKeys)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fault.Invalidf("", nil, "holds no key")
	}
	return keys, nil
}

// Text returns the key itself in base64url.
func (k Key) Text() string {
	b := k()
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Equal compares in constant time.
func (k Key) Equal(other Key) bool {
	if k == nil || other == nil {
		return k == nil && other == nil
	}
	a, b := k(), other()
	return hmac.Equal(a[:], b[:])
}

// Contains reports whether keys hold a key.
func Contains(keys []Key, k Key) bool {
	return slices.ContainsFunc(keys, k.Equal)
}

// String shows only the presence of a key.
func (k Key) String() string {
	if k == nil {
		return ""
	}
	return "[redacted]"
}

// Format implements fmt.Formatter for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText implements encoding.TextMarshaler, for JSON, YAML and logs.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Private returns the key of libp2p's private network protocol for a closed network.
func (k Key) Private(n network.Name) ([]byte, error) {
	b := k()
	psk, err := hkdf.Key(sha256.New, b[:], nil, n.Domain("private-network"), KeySize)
	return psk, fault.As("identity.Private", fault.Internal, err)
}

// Challenge is one question for a proof of the key, and the nonce of its answer. libp2p has authenticated both peers.
type Challenge struct {
	Network          network.Name
	Verifier, Prover peer.ID
	Asked, Answered  []byte // nonces of verifier and prover, NonceSize bytes each
}

// Prove returns the proof of a key: HMAC-SHA256 over the domain, the role, both peers and both nonces, each after its
// length. So a proof is void for another network, another pair of peers, the other direction and another time.
func (c Challenge) Prove(k Key) []byte {
	b := k()
	h := hmac.New(sha256.New, b[:])
	for _, part := range [][]byte{
		[]byte(c.Network.Domain("key-proof")), []byte("prover"), []byte(c.Verifier), []byte(c.Prover), c.Asked, c.Answered,
	} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// Proved returns the key that a proof shows; nil: none of them.
func (c Challenge) Proved(keys []Key, proof []byte) Key {
	if len(c.Asked) != NonceSize || len(c.Answered) != NonceSize {
		return nil
	}
	var shown Key
	for _, k := range keys {
		if hmac.Equal(c.Prove(k), proof) {
			shown = k
		}
	}
	return shown
}
