package records

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/records/jsonform"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// View is the form of a record for people and programs: the provider's offer and the peer's
// additions. Only the envelope proves the content.
type View struct {
	Offer
	ProviderID string    `json:"provider_id"`
	CreatedAt  time.Time `json:"created_at,omitzero"`
	UpdatedAt  time.Time `json:"updated_at,omitzero"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	Sequence   uint64    `json:"sequence"`
	Withdrawn  bool      `json:"withdrawn,omitempty"`
	Signature  []byte    `json:"signature,omitempty"`  // of the envelope
	Key        string    `json:"key,omitempty"`        // the record's own key in the DHT
	ContentID  string    `json:"content_id,omitempty"` // empty for a view made of a message without its signed bytes
}

// ViewOf returns the view of a record.
func ViewOf(r *Record) View {
	v := viewOf(r.Service())
	v.Key = r.Key().String()
	v.ContentID = r.ContentID().String()
	return v
}

// ViewOfService returns the view of a message, verified or not: without a content id, and
// without a key for an invalid message.
func ViewOfService(s *pb.ServiceRecord) View {
	v := viewOf(s)
	v.Key = keyOf(s)
	return v
}

func viewOf(s *pb.ServiceRecord) View {
	return View{
		Offer:      OfferOf(s),
		ProviderID: s.GetProviderId(),
		CreatedAt:  timeOf(s.GetCreatedAt()),
		UpdatedAt:  timeOf(s.GetUpdatedAt()),
		ExpiresAt:  timeOf(s.GetExpiresAt()),
		Sequence:   s.GetSequence(),
		Withdrawn:  s.GetWithdrawn(),
		Signature:  s.GetSignature(),
	}
}

func keyOf(s *pb.ServiceRecord) string {
	provider, err := peer.Decode(s.GetProviderId())
	if err != nil || !isEd25519(provider) || validateContent(s) != nil {
		return ""
	}
	return recordOf(s, provider).Key().String()
}

// timeOf returns the zero time for an absent or invalid timestamp.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

// Stored counts the peers that hold a record, and the peers that should.
type Stored struct {
	On int `json:"on"`
	Of int `json:"of"`
}

// Outcome is the result of storing one record at its keepers. Err is nil if at least one keeper
// stored it.
type Outcome struct {
	Stored Stored
	Err    error
}

// Measured is this peer's own measurement of a provider.
type Measured struct {
	Reachable bool
	RoundTrip time.Duration // 0 for unknown
	CheckedAt time.Time     // zero for never
}

// measured is the JSON form of Measured.
type measured struct {
	Reachable   bool      `json:"reachable"`
	RoundTripMs float64   `json:"round_trip_ms,omitempty"`
	CheckedAt   time.Time `json:"checked_at,omitzero"`
}

// MarshalJSON writes the round trip in milliseconds, as round_trip_ms.
func (m Measured) MarshalJSON() ([]byte, error) {
	return json.Marshal(measured{
		Reachable:   m.Reachable,
		RoundTripMs: float64(m.RoundTrip) / float64(time.Millisecond),
		CheckedAt:   m.CheckedAt,
	})
}

// AppendJSON appends the result of MarshalJSON, for a time of the years 0 to 9999.
func (m Measured) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"reachable":`...)
	dst = strconv.AppendBool(dst, m.Reachable)
	if m.RoundTrip != 0 {
		dst = append(dst, `,"round_trip_ms":`...)
		dst = jsonform.AppendNumber(dst, float64(m.RoundTrip)/float64(time.Millisecond))
	}
	if !m.CheckedAt.IsZero() {
		dst = append(dst, `,"checked_at":`...)
		dst = jsonform.AppendTime(dst, m.CheckedAt)
	}
	return append(dst, '}')
}

// UnmarshalJSON reads the output of MarshalJSON, to the nanosecond for less than a month.
func (m *Measured) UnmarshalJSON(data []byte) error {
	var v measured
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	*m = Measured{
		Reachable: v.Reachable,
		RoundTrip: time.Duration(math.Round(v.RoundTripMs * float64(time.Millisecond))),
		CheckedAt: v.CheckedAt,
	}
	return nil
}
