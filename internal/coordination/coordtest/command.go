package coordtest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Command returns the command of an owner with a copy of a request of any kind.
func Command(owner string, request proto.Message) *coordv1.Command {
	cmd := &coordv1.Command{Owner: owner}
	m, kind := cmd.ProtoReflect(), request.ProtoReflect().Descriptor()
	all := m.Descriptor().Oneofs().ByName("request").Fields()
	for i := range all.Len() {
		if field := all.Get(i); field.Message() == kind {
			m.Set(field, protoreflect.ValueOfMessage(proto.Clone(request).ProtoReflect()))
			return cmd
		}
	}
	panic("coordtest: no command has a " + string(kind.Name()))
}

// Once gives a command an identity, under which the group applies it once.
func Once(client coord.ClientID, sequence uint64, cmd *coordv1.Command) *coordv1.Command {
	cmd.Attempt = &apiv1.Attempt{Client: uint64(client), Sequence: sequence}
	return cmd
}

// Put returns a step that puts a key.
func Put(key, value string, lease coord.LeaseID) *apiv1.TxnStep {
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte(key), Value: []byte(value), Lease: int64(lease)}}}
}

// Delete returns a step that deletes the keys of a span.
func Delete(span coord.Span) *apiv1.TxnStep {
	from, to := Ends(span)
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: from, RangeEnd: to}}}
}

// Ends returns the key and range_end of a span in a transaction.
func Ends(span coord.Span) (key, rangeEnd []byte) {
	if span.From != "" && span == coord.Exactly(span.From) {
		return []byte(span.From), nil
	}
	return span.Bounds()
}

// IfRevision returns a comparison that holds while a key was last changed at a revision; with 0, while it is absent.
func IfRevision(key string, mod coord.Revision) *apiv1.Compare {
	return &apiv1.Compare{Key: []byte(key), Number: int64(mod)}
}

// IfHolds returns a comparison that holds while the claim with a token holds a lock.
func IfHolds(lock string, token coord.Token) *apiv1.Compare {
	return &apiv1.Compare{Target: apiv1.Compare_HOLDS, Lock: lock, FencingToken: int64(token)}
}
