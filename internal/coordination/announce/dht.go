package announce

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// DHTNamespace returns the first segment of the DHT keys of announcements.
func DHTNamespace(n network.Name) string { return n.Namespace("group") }

// lifetime is the validity of an announcement in the DHT: four times the longest pause between two
// publications.
const lifetime = 24 * time.Hour

// Key returns the DHT key of the announcement: /blackhole.NETWORK.group/ID.
func Key(n bootstrap.Network) string { return "/" + DHTNamespace(n.Name) + "/" + n.ID().String() }

// Validator validates the DHT values of the namespace: the announcement of one network only. So a peer stores
// one value, whoever puts how many. It is safe for concurrent use.
type Validator struct {
	network bootstrap.Network
	key     string
	now     func() time.Time
	refused func(error)
}

// NewValidator returns the Validator of a network. refused counts rejected values under its key, forged and
// stale ones; nil counts nothing.
func NewValidator(n bootstrap.Network, now func() time.Time, refused func(error)) *Validator {
	if refused == nil {
		refused = func(error) {}
	}
	return &Validator{n, Key(n), now, refused}
}

// Validate returns Invalid for a foreign key, and TooLarge, Invalid, Unauthentic, or Conflict for a value that
// is too old or from the future.
func (v *Validator) Validate(key string, value []byte) error {
	const op = "announce.Validate"
	if err := v.owns(key); err != nil {
		return fault.Wrap(op, err)
	}
	_, err := v.open(value)
	if err != nil {
		v.refused(err)
	}
	return fault.Wrap(op, err)
}

// Select returns the position of the newest valid value, the first of equal ones: a DHT stores [new, old] only
// for 0, so that a repeated publication counts as new. Without a valid value it returns the first value's
// error.
func (v *Validator) Select(key string, values [][]byte) (int, error) {
	const op = "announce.Select"
	if err := v.owns(key); err != nil {
		return 0, fault.Wrap(op, err)
	}
	at, best, failure := -1, announcement{}, error(fault.New("", fault.Invalid, "no values to select from"))
	for i, value := range values {
		n, err := v.open(value)
		switch {
		case err != nil && i == 0:
			failure = err
		case err == nil && (at < 0 || n.compare(best) > 0):
			at, best = i, n
		}
	}
	if at < 0 {
		return 0, fault.Wrap(op, failure)
	}
	return at, nil
}

// announcement is an announcement in the DHT.
type announcement struct {
	verified
	incarnation uint64
}

// compare orders announcements, newest last: by incarnation, then by configuration, by term, by the presence
// of a leader, and by time.
func (n announcement) compare(other announcement) int {
	return cmp.Or(
		cmp.Compare(n.incarnation, other.incarnation),
		cmp.Compare(n.info.GetConfigIndex(), other.info.GetConfigIndex()),
		cmp.Compare(n.info.GetTerm(), other.info.GetTerm()),
		cmp.Compare(min(n.info.GetLeader(), 1), min(other.info.GetLeader(), 1)),
		cmp.Compare(n.sequence, other.sequence))
}

func (v *Validator) owns(key string) error {
	if key != v.key {
		return fault.Invalidf("key", clean.Text(key, len(v.key)), "belongs to another network")
	}
	return nil
}

// open decodes an announcement. Errors: as verify; Invalid; Unauthentic; Conflict.
func (v *Validator) open(value []byte) (announcement, error) {
	said, err := verify(v.network, value)
	if err != nil {
		return announcement{}, err
	}
	now := v.now()
	if at := said.at(); at.Before(now.Add(-lifetime)) || at.After(now.Add(window)) {
		return announcement{}, fault.New("", fault.Conflict, "the announcement is of %s", at.UTC().Format(time.RFC3339))
	}
	made := announcement{verified: said}
	if wire := said.info.GetRecovery(); len(wire) > 0 {
		s, err := bootstrap.DecodeRecovery(wire)
		switch {
		case err != nil:
			return announcement{}, err
		case string(s.Group[:]) != string(said.info.GetGroupId()) || !v.network.Eligible(s.Peer):
			return announcement{}, fault.New("", fault.Unauthentic, "the recovery record is not of the group")
		}
		made.incarnation = s.Incarnation
	}
	return made, nil
}

// Values is the DHT.
type Values interface {
	// PutValue stores a value under a key.
	PutValue(ctx context.Context, key string, value []byte) error
	// GetValue returns the best value under a key, or NotFound.
	GetValue(ctx context.Context, key string) ([]byte, error)
}

// DHTStore stores the leader's announcement as a DHT value, for peers without a peer to
// ask. Its content is as good as an announcement. It is safe for concurrent use.
type DHTStore struct {
	*Validator // this package does not trust the DHT
	values     Values
	signer     crypto.PrivKey
	sequence   sequence

	mu    sync.Mutex   // guards known
	known announcement // last one read
}

// NewDHTStore returns the store of a network. A peer publishes with its key.
func NewDHTStore(v Values, n bootstrap.Network, key crypto.PrivKey, now func() time.Time) *DHTStore {
	return &DHTStore{Validator: NewValidator(n, now, nil), values: v, signer: key}
}

// Publish replaces the announcement. The DHT does not report the number of storing peers.
//
// Errors: Exists for a newer announcement; as the DHT.
func (b *DHTStore) Publish(ctx context.Context, info *groupv1.GroupInfo) error {
	const op = "announce.Publish"
	value, err := sign(b.signer, b.network, b.sequence.next(b.now()), info)
	if err != nil {
		return fault.Wrap(op, err)
	}
	return fault.Wrap(op, b.values.PutValue(ctx, b.key, value))
}

// Lookup returns the announcement and its signer, unless an earlier call returned it.
//
// Errors: NotFound without a new announcement; as the DHT.
func (b *DHTStore) Lookup(ctx context.Context) (peer.ID, *groupv1.GroupInfo, error) {
	const op = "announce.Lookup"
	value, err := b.values.GetValue(ctx, b.key)
	if err != nil {
		return "", nil, fault.Wrap(op, err)
	}
	n, err := b.open(value)
	if err != nil {
		return "", nil, fault.Wrap(op, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known.info != nil && n.compare(b.known) <= 0 {
		return "", nil, fault.New(op, fault.NotFound, "there is nothing new")
	}
	b.known = n
	return n.from, n.info, nil
}
