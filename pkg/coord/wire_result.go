package coord

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// EncodeResult gives a result as one member sends it to another.
func EncodeResult(r Result) ([]byte, error) {
	p := &coordv1.Result{
		Revision: int64(r.Revision), Lease: int64(r.Lease), TtlMs: r.TTL, Client: uint64(r.Client), Changed: uint32(r.Changed),
	}
	if r.Err != nil {
		p.Refusal = &coordv1.Refusal{Kind: uint32(fault.KindOf(r.Err)), Field: fault.FieldOf(r.Err), Message: fault.Message(r.Err)}
	}
	if r.Lock != (LockResult{}) {
		p.Lock = &coordv1.LockResult{
			Key: []byte(r.Lock.Key), Token: int64(r.Lock.Token), Granted: r.Lock.Granted,
			Position: uint32(r.Lock.Position), Count: r.Lock.Count, Predecessor: []byte(r.Lock.Predecessor),
		}
	}
	for _, id := range r.Ended {
		p.Ended = append(p.Ended, int64(id))
	}
	for _, key := range r.Foreign {
		p.Foreign = append(p.Foreign, []byte(key))
	}
	for _, revision := range r.Since {
		p.Since = append(p.Since, int64(revision))
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	return b, fault.As("coord.EncodeResult", fault.Internal, err)
}

// DecodeResult reads a result. Fields that are not known are passed over.
//
// Errors: Invalid.
func DecodeResult(b []byte) (Result, error) {
	var p coordv1.Result
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &p); err != nil {
		return Result{}, fault.As("coord.DecodeResult", fault.Invalid, err)
	}
	r := Result{
		Revision: Revision(p.GetRevision()), Lease: LeaseID(p.GetLease()), TTL: p.GetTtlMs(),
		Client: ClientID(p.GetClient()), Changed: int(p.GetChanged()),
		Lock: LockResult{
			Key: string(p.GetLock().GetKey()), Token: Token(p.GetLock().GetToken()), Granted: p.GetLock().GetGranted(),
			Position: int(p.GetLock().GetPosition()), Count: p.GetLock().GetCount(), Predecessor: string(p.GetLock().GetPredecessor()),
		},
	}
	if refused := p.GetRefusal(); refused != nil {
		if refused.GetKind() > 255 {
			return Result{}, fault.Wrap("coord.DecodeResult", fault.Invalidf("refusal.kind", refused.GetKind(), "is not known"))
		}
		r.Err = Refusal(fault.Kind(refused.GetKind()), refused.GetField(), refused.GetMessage())
	}
	for _, id := range p.GetEnded() {
		r.Ended = append(r.Ended, LeaseID(id))
	}
	for _, key := range p.GetForeign() {
		r.Foreign = append(r.Foreign, string(key))
	}
	for _, revision := range p.GetSince() {
		r.Since = append(r.Since, Revision(revision))
	}
	return r, nil
}
