package records

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// Verifier opens envelopes and caches verified records, so that a record received from many
// peers costs one verification. It is safe for concurrent use.
type Verifier struct {
	network  network.Name
	verified *lru.Cache[[sha256.Size]byte, *Record] // by the hash of the whole envelope
}

// NewVerifier returns a verifier of a network's records with a cache of size records. An invalid name and a size
// below 1 are Invalid.
func NewVerifier(n network.Name, size int) (*Verifier, error) {
	if err := n.Validate(); err != nil {
		return nil, fault.In("network", err)
	}
	if size <= 0 {
		return nil, fault.Invalidf("size", size, "must be positive")
	}
	verified, err := lru.New[[sha256.Size]byte, *Record](size)
	if err != nil {
		return nil, fault.As("records.NewVerifier", fault.Internal, err)
	}
	return &Verifier{network: n, verified: verified}, nil
}

// Open is the function Open, but returns one *Record for equal bytes while the cache holds it.
// Each call checks validity at now. The cache does not hold failures.
func (v *Verifier) Open(envelope []byte, now time.Time) (*Record, error) {
	const op = "records.Open"
	if len(envelope) > MaxSize { // before hashing
		return Open(v.network, envelope, now)
	}
	digest := sha256.Sum256(envelope)
	r, ok := v.verified.Get(digest)
	if !ok {
		var err error
		if r, err = verify(v.network, envelope); err != nil {
			return nil, fault.Wrap(op, err)
		}
		if known, ok, _ := v.verified.PeekOrAdd(digest, r); ok {
			r = known // another goroutine was first
		}
	}
	if err := r.current(now); err != nil {
		return nil, fault.Wrap(op, err)
	}
	return r, nil
}
