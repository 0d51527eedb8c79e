package machine

import (
	"math"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Encode returns a command as a log entry, which holds the API's request itself. Encode drops
// unknown fields: a member of a later version must read the entry as this one does. The level is the
// feature level that the group needs for the command.
//
// Errors: Invalid; Unsupported for an unknown request.
func (f Features) Encode(cmd coord.Command) (encoded []byte, level uint32, err error) {
	const op = "machine.Encode"
	m, err := coord.Message(cmd)
	if err != nil {
		return nil, 0, fault.Wrap(op, err)
	}
	if m.GetRequest() == nil {
		return nil, 0, fault.Wrap(op, fault.Refused(fault.Unsupported, "op", "is not known to this peer"))
	}
	if _, received := cmd.Op.(*coord.Encoded); received {
		dropUnknown(m.ProtoReflect())
	}
	if m.Level = f.levelOf(m); m.Level > f.Levels.Max {
		return nil, 0, fault.Wrap(op, fault.Refused(fault.Unsupported, "level", "the command needs feature level %d, this peer supports %v", m.Level, f.Levels))
	}
	encoded, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return encoded, m.Level, fault.As(op, fault.Invalid, err)
}

func dropUnknown(m protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		case !field.IsMap(): // requests have no maps
			dropUnknown(v.Message())
		}
		return true
	})
}

// Decode reads a log entry of a group at a feature level. A member that cannot decode a committed entry
// must stop: skipping the entry would diverge. Members of the group support its level, so that an entry
// above it, or an unknown one below, is damage. A contradictory request decodes to coord.Malformed, and
// every member refuses it alike.
//
// Errors: Invalid; Unsupported for a level that this program does not support.
func (f Features) Decode(b []byte, group uint32) (coord.Command, error) {
	const op = "machine.Decode"
	var m coordv1.Command
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &m); err != nil {
		return coord.Command{}, fault.As(op, fault.Invalid, err)
	}
	if err := f.check(&m, group); err != nil {
		return coord.Command{}, fault.Wrap(op, err)
	}
	if size := proto.Size(&m); size != len(b) {
		return coord.Command{}, fault.New(op, fault.Invalid, "%d of %d bytes are unknown fields or not in their shortest form", len(b)-size, len(b))
	}
	return commandOf(&m), nil
}

// Decoded returns a command with its operation in the form of package coord.
func Decoded(cmd coord.Command) coord.Command {
	if o, ok := cmd.Op.(*coord.Encoded); ok {
		cmd.Op, _ = operationIn(o.Message)
	}
	return cmd
}

func commandOf(m *coordv1.Command) coord.Command {
	op, attempt := operationIn(m)
	if attempt == nil {
		attempt = m.GetAttempt()
	}
	return coord.Command{
		Client: coord.ClientID(attempt.GetClient()), Sequence: attempt.GetSequence(), Owner: m.GetOwner(), Random: m.GetRandom(), Op: op,
	}
}

// operationIn returns a request's operation and identity.
func operationIn(m *coordv1.Command) (coord.Op, *apiv1.Attempt) {
	switch r := m.GetRequest().(type) {
	case *coordv1.Command_Lock:
		p := r.Lock
		return lockOf(p, true), p.GetAttempt()
	case *coordv1.Command_TryLock:
		p := r.TryLock
		return lockOf(p, false), p.GetAttempt()
	case *coordv1.Command_Unlock:
		p := r.Unlock
		return &coord.Unlock{Name: p.GetName(), Lease: coord.LeaseID(p.GetLeaseId()), Token: coord.Token(p.GetFencingToken())}, p.GetAttempt()
	case *coordv1.Command_LeaseGrant:
		p := r.LeaseGrant
		return &coord.LeaseGrant{ID: coord.LeaseID(p.GetId()), TTL: ttlOf(p), Application: p.GetApplication()}, p.GetAttempt()
	case *coordv1.Command_LeaseRevoke:
		return &coord.LeaseRevoke{ID: coord.LeaseID(r.LeaseRevoke.GetId())}, r.LeaseRevoke.GetAttempt()
	case *coordv1.Command_Txn:
		return txnOf(r.Txn), r.Txn.GetAttempt()
	case *coordv1.Command_PublishInstances:
		return batchOf(r.PublishInstances), r.PublishInstances.GetAttempt()
	case *coordv1.Command_SetRequirement:
		return requirementOf(r.SetRequirement), r.SetRequirement.GetAttempt()
	case *coordv1.Command_DeleteRequirement:
		return &coord.DeleteRequirement{Name: r.DeleteRequirement.GetName()}, r.DeleteRequirement.GetAttempt()
	case *coordv1.Command_OpenClient:
		return &coord.ClientOpen{}, nil
	case *coordv1.Command_CloseClient:
		return &coord.ClientClose{}, nil
	}
	return internalOf(m), nil
}

// internalOf returns an operation of members.
func internalOf(m *coordv1.Command) coord.Op {
	switch r := m.GetRequest().(type) {
	case *coordv1.Command_Cancel:
		return &coord.Cancel{Name: r.Cancel.GetName(), Lease: coord.LeaseID(r.Cancel.GetLease()), Token: coord.Token(r.Cancel.GetToken())}
	case *coordv1.Command_Compact:
		return &coord.Compact{Revision: coord.Revision(r.Compact.GetRevision())}
	case *coordv1.Command_Expire:
		o := &coord.Expire{Term: r.Expire.GetTerm(), Leases: make([]coord.LeaseRef, 0, len(r.Expire.GetLeases()))}
		for _, ref := range r.Expire.GetLeases() {
			o.Leases = append(o.Leases, coord.LeaseRef{ID: coord.LeaseID(ref.GetId()), Granted: ref.GetGranted()})
		}
		return o
	case *coordv1.Command_ClientsExpire:
		return &coord.ClientsExpire{Term: r.ClientsExpire.GetTerm(), IdleSince: r.ClientsExpire.GetIdleSince()}
	case *coordv1.Command_Configure:
		return &coord.Configure{Limits: limitsOf(r.Configure.GetLimits())}
	case *coordv1.Command_BumpIncarnation:
		return &coord.BumpIncarnation{Incarnation: r.BumpIncarnation.GetIncarnation()}
	case *coordv1.Command_SetLevel:
		return &coord.SetLevel{Level: r.SetLevel.GetLevel()}
	case *coordv1.Command_Dissolve:
		return &coord.Dissolve{Successor: coord.GroupID(r.Dissolve.GetSuccessor()), Force: r.Dissolve.GetForce()}
	case *coordv1.Command_RaiseRevision:
		o := &coord.RaiseRevision{To: coord.Revision(r.RaiseRevision.GetTo()), Resume: r.RaiseRevision.GetResume()}
		for _, id := range r.RaiseRevision.GetAbsorbed() {
			o.Absorbed = append(o.Absorbed, coord.GroupID(id))
		}
		return o
	}
	return &coord.Malformed{Err: fault.Invalidf("op", nil, "is missing")}
}

// lockRequest is what both requests for a lock have in common.
type lockRequest interface {
	GetName() string
	GetLeaseId() int64
	GetMode() apiv1.ShareMode
	GetPermits() uint32
	GetMetadata() []byte
}

func lockOf(p lockRequest, wait bool) coord.Op {
	mode := p.GetMode()
	if mode < 0 || mode > apiv1.ShareMode(coord.Permit) {
		return &coord.Malformed{Err: fault.Invalidf("mode", mode, "is not known")}
	}
	return &coord.Lock{
		Name: p.GetName(), Lease: coord.LeaseID(p.GetLeaseId()), Mode: coord.Mode(mode), Permits: p.GetPermits(),
		Wait: wait, Metadata: p.GetMetadata(),
	}
}

// ttlOf returns the time to live in milliseconds. Requests use seconds or milliseconds.
func ttlOf(p *apiv1.LeaseGrantRequest) int64 {
	if p.GetTtlMs() > 0 {
		return p.GetTtlMs()
	}
	return min(max(p.GetTtl(), 0), math.MaxInt64/1000) * 1000
}

func batchOf(p *apiv1.PublishInstancesRequest) *coord.RegisterBatch {
	o := &coord.RegisterBatch{Lease: coord.LeaseID(p.GetLeaseId()), Generation: p.GetGeneration(), Puts: make([]coord.Entry, len(p.GetPuts()))}
	for i, e := range p.GetPuts() {
		o.Puts[i] = coord.Entry{
			Key: string(e.GetKey()), Value: e.GetValue(), Adopt: e.GetAdopt(), Since: coord.Revision(e.GetSince()), Principal: e.GetPrincipal(),
		}
	}
	for _, key := range p.GetDeletes() {
		o.Deletes = append(o.Deletes, string(key))
	}
	if p.GetReplace() {
		span := coord.SpanOf(p.GetKey(), p.GetRangeEnd())
		o.Replace = &span
	}
	return o
}

func requirementOf(p *apiv1.SetRequirementRequest) coord.Op {
	question, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.GetQuery())
	if err != nil {
		return &coord.Malformed{Err: fault.Invalidf("selector", nil, "cannot be kept: %v", err)}
	}
	return &coord.SetRequirement{Requirement: coord.Requirement{Name: p.GetName(), Min: int(p.GetMin()), Question: question}}
}

func limitsOf(p *coordv1.Limits) coord.Limits {
	return coord.Limits{
		Keys: p.GetKeys(), Bytes: p.GetBytes(), KeyBytes: p.GetKeyBytes(), ValueBytes: p.GetValueBytes(), OwnerBytes: p.GetOwnerBytes(), TxnBytes: p.GetTxnBytes(),
		Changes: p.GetChanges(), Leases: p.GetLeases(), LeaseKeys: p.GetLeaseKeys(), MinTTL: p.GetMinTtlMs(), MaxTTL: p.GetMaxTtlMs(),
		Queue: p.GetQueue(), Claims: p.GetClaims(), Clients: p.GetClients(), HistoryEvents: p.GetHistoryEvents(), HistoryBytes: p.GetHistoryBytes(),
		Reserved: p.GetReservedPercent(),
		PerOwner: coord.Quota{
			Leases: p.GetPerOwner().GetLeases(), Claims: p.GetPerOwner().GetClaims(),
			Clients: p.GetPerOwner().GetClients(), Bytes: p.GetPerOwner().GetBytes(),
			UnleasedKeys: p.GetPerOwner().GetUnleasedKeys(), UnleasedBytes: p.GetPerOwner().GetUnleasedBytes(),
		},
	}
}
