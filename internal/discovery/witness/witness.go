// Package witness is the knowledge about providers that peers share, so that a thousand consumers of one offer do
// not make a thousand pings. A peer signs its findings, gives them to keepers of the cell that it asked, and
// receives the findings of others from them.
//
// How much are findings of others believed? A finding of this peer always wins. Findings "reachable" or "busy" of
// others spare this peer a measurement, at most SpareInARow times in a row. Findings "unreachable" make it measure at once, and hide
// nothing by themselves: an own failure decides together with those of others in two more address prefixes, or alone after a second one.
// The prefix of a measurer counts if it delivered its statement itself. Liars therefore hide nothing, however many they are, and a lie
// "reachable" ends with the next own measurement.
//
// The package is pure: it has no clock, no network and no goroutine.
package witness

import (
	"bytes"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Bounds of a statement.
const (
	Life         = 10 * time.Minute // of a finding about a provider's peer
	EndpointLife = 20 * time.Minute // of a finding about an endpoint
	MaxFindings  = 16               // of one statement
	MaxSize      = 2 << 10          // bytes of one statement

	skew = 2 * time.Minute // tolerated difference of clocks
)

// domain returns what the signatures of statements begin with.
func domain(n network.Name) string { return n.Domain("findings") + ":" }

// Finding is one measurement of a provider's peer, or of the endpoint of one of its offers.
type Finding struct {
	Provider  peer.ID
	Record    string // id of the offer; empty: about the peer
	State     records.Reachability
	RoundTrip time.Duration // 0: unknown
	CheckedAt time.Time
}

// Statement is the signed findings of one peer.
type Statement struct {
	By       peer.ID
	Findings []Finding
	Bytes    []byte // as signed
}

// Sign returns the bytes of a statement in a network about at most MaxFindings findings. It fails only with the key.
func Sign(n network.Name, key crypto.PrivKey, findings []Finding) ([]byte, error) {
	const op = "witness.Sign"
	m := &pb.Findings{}
	for _, f := range findings[:min(len(findings), MaxFindings)] {
		one := &pb.Finding{
			Provider: []byte(f.Provider), RecordId: f.Record,
			RoundTripUs: uint32(min(f.RoundTrip.Microseconds(), 1<<31)), CheckedMs: uint64(max(f.CheckedAt.UnixMilli(), 0)),
		}
		if f.Record == "" {
			one.State = numberOf(states(), f.State)
		} else {
			one.Endpoint = numberOf(endpointStates(), f.State)
		}
		m.Findings = append(m.Findings, one)
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	signature, err := key.Sign(append([]byte(domain(n)), content...))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	data, err := proto.Marshal(&pb.SignedFindings{Findings: content, By: []byte(id), Signature: signature})
	return data, fault.Wrap(op, err)
}

// Open verifies a statement of a network. It leaves out findings that are too old or from the future, and states of
// later versions. Errors: TooLarge; Invalid for a malformed statement; Unauthentic for a wrong signature, that of
// another network included.
func Open(n network.Name, data []byte, now time.Time) (Statement, error) {
	const op = "witness.Open"
	var signed pb.SignedFindings
	var content pb.Findings
	if len(data) > MaxSize {
		return Statement{}, fault.New(op, fault.TooLarge, "a statement has at most %d bytes", MaxSize)
	}
	if proto.Unmarshal(data, &signed) != nil || proto.Unmarshal(signed.Findings, &content) != nil {
		return Statement{}, fault.New(op, fault.Invalid, "malformed statement")
	}
	if len(content.Findings) > MaxFindings {
		return Statement{}, fault.New(op, fault.TooLarge, "a statement has at most %d findings", MaxFindings)
	}
	by, err := peer.IDFromBytes(signed.By)
	if err != nil {
		return Statement{}, fault.As(op, fault.Invalid, err)
	}
	key, err := by.ExtractPublicKey() // an Ed25519 id contains its key
	if err != nil {
		return Statement{}, fault.As(op, fault.Unauthentic, err)
	}
	if ok, err := key.Verify(append([]byte(domain(n)), signed.Findings...), signed.Signature); err != nil || !ok {
		return Statement{}, fault.New(op, fault.Unauthentic, "the signature is not that of %s in the network %s", by, n)
	}
	s := Statement{By: by, Bytes: bytes.Clone(data)}
	for _, m := range content.Findings {
		f := Finding{
			Provider: peer.ID(m.Provider), Record: m.RecordId, State: stateOf(states(), m.State),
			RoundTrip: time.Duration(m.RoundTripUs) * time.Microsecond, CheckedAt: time.UnixMilli(int64(min(m.CheckedMs, 1<<53))),
		}
		if f.Record != "" {
			f.State = stateOf(endpointStates(), m.Endpoint)
		}
		// Nobody is a witness of itself.
		if f.State != "" && f.Provider != by && f.Provider.Validate() == nil && f.current(now) {
			s.Findings = append(s.Findings, f)
		}
	}
	return s, nil
}

// current reports whether a finding still counts.
func (f *Finding) current(now time.Time) bool {
	age := now.Sub(f.CheckedAt)
	life := Life
	if f.Record != "" {
		life = EndpointLife
	}
	return age < life && age > -skew
}

// Key identifies what a finding is about: a provider, or one of its offers. Two things have two keys.
func Key(provider peer.ID, record string) string { return string(provider) + "/" + record }

// states are the findings by their number on the wire, less one.
func states() []records.Reachability {
	return []records.Reachability{records.Reachable, records.Busy, records.Unreachable}
}

// endpointStates are the findings about endpoints by their number on the wire, less one.
func endpointStates() []records.Reachability {
	return []records.Reachability{
		records.Answers, records.Refuses, records.Wrong, records.NoSuchName, records.Certificate, records.Silent, records.Closed,
	}
}

func numberOf(list []records.Reachability, s records.Reachability) uint32 {
	return uint32(slices.Index(list, s) + 1)
}

// stateOf returns "" for an unknown number.
func stateOf(list []records.Reachability, n uint32) records.Reachability {
	if n < 1 || int(n) > len(list) {
		return ""
	}
	return list[n-1]
}
