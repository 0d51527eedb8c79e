package protocol

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

// A peer signs what it found about providers, gives it to the witnesses of these, and receives what others found from
// them, so that a thousand consumers of one offer do not make a thousand checks. How much findings are believed is
// package truth's.

// Bounds of a statement.
const (
	FindingLife  = 20 * time.Minute // of a finding
	MaxFindings  = 16               // of one statement
	MaxStatement = 2 << 10          // bytes
	MaxTold      = 32               // statements of one answer

	findingSkew = 2 * time.Minute // tolerated difference of clocks
)

// findingDomain returns what the signatures of statements begin with.
func findingDomain(n network.Name) string { return n.Domain("findings") + ":" }

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

// SignFindings returns the bytes of a statement in a network about at most MaxFindings findings. It fails only with
// the key.
func SignFindings(n network.Name, key crypto.PrivKey, findings []Finding) ([]byte, error) {
	const op = "protocol.SignFindings"
	m := &pb.Findings{}
	for _, f := range findings[:min(len(findings), MaxFindings)] {
		m.Findings = append(m.Findings, &pb.Finding{
			Provider: []byte(f.Provider), RecordId: f.Record, State: uint32(slices.Index(statesOf(f.Record), f.State) + 1),
			RoundTripUs: uint32(min(f.RoundTrip.Microseconds(), 1<<31)), CheckedMs: uint64(max(f.CheckedAt.UnixMilli(), 0)),
		})
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	signature, err := key.Sign(append([]byte(findingDomain(n)), content...))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	data, err := proto.Marshal(&pb.SignedFindings{Findings: content, By: []byte(id), Signature: signature})
	return data, fault.Wrap(op, err)
}

// OpenFindings verifies a statement of a network. It leaves out findings that are too old or from the future, and
// states of later versions. Errors: TooLarge; Invalid for a malformed statement; Unauthentic for a wrong signature,
// that of another network included.
func OpenFindings(n network.Name, data []byte, now time.Time) (Statement, error) {
	const op = "protocol.OpenFindings"
	var signed pb.SignedFindings
	var content pb.Findings
	if len(data) > MaxStatement {
		return Statement{}, fault.New(op, fault.TooLarge, "a statement has at most %d bytes", MaxStatement)
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
	if ok, err := key.Verify(append([]byte(findingDomain(n)), signed.Findings...), signed.Signature); err != nil || !ok {
		return Statement{}, fault.New(op, fault.Unauthentic, "the signature is not that of %s in the network %s", by, n)
	}
	s := Statement{By: by, Bytes: bytes.Clone(data)}
	for _, m := range content.Findings {
		f := Finding{
			Provider: peer.ID(m.Provider), Record: m.RecordId,
			RoundTrip: time.Duration(m.RoundTripUs) * time.Microsecond, CheckedAt: time.UnixMilli(int64(min(m.CheckedMs, 1<<53))),
		}
		if list := statesOf(m.RecordId); m.State > 0 && int(m.State) <= len(list) {
			f.State = list[m.State-1]
		}
		// Nobody is a witness of itself.
		if f.State != "" && f.Provider != by && f.Provider.Validate() == nil && f.Current(now) {
			s.Findings = append(s.Findings, f)
		}
	}
	return s, nil
}

// Current reports whether a finding still counts.
func (f *Finding) Current(now time.Time) bool {
	age := now.Sub(f.CheckedAt)
	return age < FindingLife && age > -findingSkew
}

// statesOf are the findings about a provider's peer, or about an endpoint or a domain, by their number on the wire,
// less one.
func statesOf(record string) []records.Reachability {
	if record == "" {
		return []records.Reachability{records.Reachable, records.Busy, records.Unreachable}
	}
	return []records.Reachability{
		records.Answers, records.Refuses, records.Wrong, records.NoSuchName, records.Certificate, records.Silent, records.Closed,
	}
}
