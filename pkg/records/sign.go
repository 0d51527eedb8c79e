package records

import (
	"cmp"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Stamp is the peer's addition to an offer at signing.
type Stamp struct {
	Sequence uint64    // see NextSequence
	Created  time.Time // of the first version; zero, or a time after Issued, means Issued
	Issued   time.Time // now
	Expires  time.Time // at most MaxTTL after Issued
	Paused   *Pause    // nil: the provider serves it
}

// Sign makes a record of an offer in a network. Errors are Invalid and name the field.
func Sign(n network.Name, key crypto.PrivKey, o Offer, st Stamp) (*Record, error) {
	const op = "records.Sign"
	s := o.Service()
	if err := cmp.Or(validateContent(s), validateStatus(s.Health)); err != nil {
		return nil, fault.Wrap(op, err)
	}
	r, err := stamp(n, key, s, st)
	return r, fault.Wrap(op, err)
}

// Tombstone makes the record that withdraws last, in its network. It expires at st.Expires or with last,
// whichever is later, so that peers remember it for as long as last could return. A zero Created
// means the time in last. Errors are Invalid and name the field; a sequence that does not
// supersede last is an error.
func Tombstone(key crypto.PrivKey, last *Record, st Stamp) (*Record, error) {
	const op = "records.Tombstone"
	if st.Sequence <= last.sequence {
		return nil, fault.Wrap(op, fault.Invalidf("sequence", st.Sequence, "must be above the withdrawn record's, %d", last.sequence))
	}
	if !last.name.Provider.MatchesPrivateKey(key) {
		return nil, fault.Wrap(op, fault.Invalidf("provider_id", last.name.Provider.String(), "is not the signer's"))
	}
	was := last.Service()
	was = withoutUnknown(was)
	was.Withdrawn, was.Critical = true, nil
	if st.Created.IsZero() {
		st.Created = was.CreatedAt.AsTime()
	}
	if st.Expires.Before(last.expires) {
		st.Expires = last.expires
	}
	r, err := stamp(last.Network(), key, bare(was), st)
	return r, fault.Wrap(op, err)
}

// NextSequence returns the sequence of the version after previous (0 for none): the Unix time in
// milliseconds, and always above previous, which the caller stores across restarts. So even a
// peer without its state supersedes its old versions.
func NextSequence(previous uint64, now time.Time) uint64 {
	next := uint64(max(now.UnixMilli(), 1))
	if previous == math.MaxUint64 {
		return previous // the largest version stays instead of starting again
	}
	return max(previous+1, next)
}

// stamp completes and seals a message. It modifies the message.
func stamp(n network.Name, key crypto.PrivKey, s *pb.ServiceRecord, st Stamp) (*Record, error) {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As("", fault.Internal, err)
	}
	if st.Created.IsZero() || st.Created.After(st.Issued) {
		st.Created = st.Issued // the clock went back since the first version
	}
	s.ProviderId = id.String()
	s.Sequence = st.Sequence
	s.CreatedAt = timestamppb.New(st.Created)
	s.UpdatedAt = timestamppb.New(st.Issued)
	s.ExpiresAt = timestamppb.New(st.Expires)
	if p := st.Paused; p != nil {
		s.Paused = &pb.Pause{Stopped: p.Stopped, Since: timestamppb.New(p.Since)}
		if !p.Until.IsZero() {
			s.Paused.Until = timestamppb.New(p.Until)
		}
		if s.Health == nil {
			s.Health = &pb.HealthStatus{}
		}
		s.Health.Status = pb.HealthStatus_UNHEALTHY
	}
	return Seal(n, key, s)
}

// bare returns the content of a tombstone of s.
func bare(s *pb.ServiceRecord) *pb.ServiceRecord {
	b := &pb.ServiceRecord{
		Id:         s.Id,
		ProviderId: s.ProviderId,
		Metadata:   &pb.ServiceMetadata{Type: s.Metadata.GetType(), Subtype: s.Metadata.GetSubtype()},
		CreatedAt:  s.CreatedAt,
		UpdatedAt:  s.UpdatedAt,
		ExpiresAt:  s.ExpiresAt,
		Sequence:   s.Sequence,
		Withdrawn:  s.Withdrawn,
		Critical:   s.Critical,
	}
	if l := s.Location; l != nil && l.Latitude != nil {
		b.Location = &pb.GeoLocation{Latitude: l.Latitude, Longitude: l.Longitude, Precision: l.Precision}
	}
	return b
}
