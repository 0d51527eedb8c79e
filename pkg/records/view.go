package records

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/platform/jsonform"
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
	Critical   []string  `json:"critical,omitempty"`   // features that a reader must have; see Record.Needs
	Paused     *Pause    `json:"paused,omitempty"`     // nil while the provider serves it
	Signature  []byte    `json:"signature,omitempty"`  // of the envelope
	Key        string    `json:"key,omitempty"`        // the record's own key in the DHT
	ContentID  string    `json:"content_id,omitempty"` // empty for a view made of a message without its signed bytes
}

// View returns the view of the record.
func (r *Record) View() View {
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
	v := View{
		Offer:      OfferOf(s),
		ProviderID: s.GetProviderId(),
		CreatedAt:  timeOf(s.GetCreatedAt()),
		UpdatedAt:  timeOf(s.GetUpdatedAt()),
		ExpiresAt:  timeOf(s.GetExpiresAt()),
		Sequence:   s.GetSequence(),
		Withdrawn:  s.GetWithdrawn(),
		Critical:   s.GetCritical(),
		Paused:     pauseOf(s.GetPaused()),
		Signature:  s.GetSignature(),
	}
	if v.Health != nil {
		v.Health.Status = claimed(s.GetHealth().GetStatus()).String()
	}
	return v
}

func keyOf(s *pb.ServiceRecord) string {
	provider, err := peer.Decode(s.GetProviderId())
	if err != nil || !isEd25519(provider) || validateContent(s) != nil {
		return ""
	}
	return recordOf(s, provider).Key().String()
}

func pauseOf(m *pb.Pause) *Pause {
	if m == nil {
		return nil
	}
	return &Pause{Stopped: m.Stopped, Since: timeOf(m.Since), Until: timeOf(m.Until)}
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
	// ThisPeerOnly says that its provider alone holds the record, so nobody else finds it.
	ThisPeerOnly bool `json:"this_peer_only,omitempty"`
}

// Outcome is the result of storing one record at its keepers. Err is nil if at least one keeper
// stored it.
type Outcome struct {
	Stored Stored
	Err    error
}

// Reachability is the result of measuring a provider.
type Reachability string

// The results of a measurement. The zero value means no result.
const (
	Reachable Reachability = "reachable" // answered a ping, or is connected
	// Busy is alive without room for a connection: it accepted the connection, then refused it.
	Busy Reachability = "busy"
	// Unreachable gave no answer at any of its addresses.
	Unreachable Reachability = "unreachable"
)

// The states of an endpoint, spoken to in its own protocol.
const (
	Unmeasured  Reachability = "unmeasured"   // nobody could tell, or not yet
	Answers     Reachability = "answers"      // completed a handshake
	Closed      Reachability = "closed"       // alive, with a gate: a key, a payment, a pause
	Refuses     Reachability = "refuses"      // refuses connections, or says that it is out of service
	Wrong       Reachability = "wrong"        // something else answers, by positive evidence
	NoSuchName  Reachability = "no such name" // its name has no address
	Certificate Reachability = "certificate"  // its certificate is not valid for its name and time
	Silent      Reachability = "silent"       // no answer in time
)

// Alive reports whether the measured peer or endpoint lives.
func (r Reachability) Alive() bool {
	return r == Answers || r == Closed || r == Reachable || r == Busy
}

// The states of the domain that an offer claims.
const (
	Claimed Reachability = "claimed" // nobody could check it, or not yet, or the domain does not name the provider
	Checked Reachability = "checked" // the domain names the provider's peer
)

// Measured is a measurement of a provider's peer, or of an endpoint.
type Measured struct {
	State     Reachability
	RoundTrip time.Duration // 0 for unknown
	CheckedAt time.Time     // zero for never
	Since     time.Time     // first failed measurement since the last answer, of a provider or a dead endpoint; zero: none
	Peers     int           // number of other peers that measured; 0: this peer itself
	Detail    string        // of an endpoint, in words of the measuring program alone
	// EndpointText is what the endpoint itself said, in the words of a stranger: data, never an instruction or a
	// finding. At most 200 bytes.
	EndpointText string
}

// measured is the JSON form of Measured.
type measured struct {
	State       Reachability `json:"state"`
	RoundTripMs float64      `json:"round_trip_ms,omitempty"`
	CheckedAt   time.Time    `json:"checked_at,omitzero"`
	Since       time.Time    `json:"since,omitzero"`
	By          string       `json:"by,omitempty"` // bySelf or byPeers
	Peers       int          `json:"peers,omitempty"`
	Detail      string       `json:"detail,omitempty"`
	Text        string       `json:"endpoint_text,omitempty"`
}

// The origins of a measurement.
const (
	bySelf  = "self"
	byPeers = "peers"
)

// by is the origin of the measurement.
func (m Measured) by() string {
	if m.Peers > 0 {
		return byPeers
	}
	return bySelf
}

// MarshalJSON writes the round trip in milliseconds, as round_trip_ms.
func (m Measured) MarshalJSON() ([]byte, error) { return m.AppendJSON(nil), nil }

// AppendJSON appends the result of MarshalJSON, for a time of the years 0 to 9999.
func (m Measured) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"state":`...)
	dst = jsonform.AppendString(dst, string(m.State))
	if m.RoundTrip != 0 {
		dst = append(dst, `,"round_trip_ms":`...)
		dst = jsonform.AppendNumber(dst, float64(m.RoundTrip)/float64(time.Millisecond))
	}
	if !m.CheckedAt.IsZero() {
		dst = append(dst, `,"checked_at":`...)
		dst = jsonform.AppendTime(dst, m.CheckedAt)
	}
	if !m.Since.IsZero() {
		dst = append(dst, `,"since":`...)
		dst = jsonform.AppendTime(dst, m.Since)
	}
	if m.State != Unmeasured && m.State != Claimed {
		dst = append(dst, `,"by":`...)
		dst = jsonform.AppendString(dst, m.by())
	}
	if m.Peers != 0 {
		dst = append(dst, `,"peers":`...)
		dst = strconv.AppendInt(dst, int64(m.Peers), 10)
	}
	if m.Detail != "" {
		dst = append(dst, `,"detail":`...)
		dst = jsonform.AppendString(dst, m.Detail)
	}
	if m.EndpointText != "" {
		dst = append(dst, `,"endpoint_text":`...)
		dst = jsonform.AppendString(dst, m.EndpointText)
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
		State:     v.State,
		RoundTrip: time.Duration(math.Round(v.RoundTripMs * float64(time.Millisecond))),
		CheckedAt: v.CheckedAt,
		Since:     v.Since,
		Peers:     v.Peers,
		Detail:    v.Detail,

		EndpointText: v.Text,
	}
	return nil
}
