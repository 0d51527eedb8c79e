package coord

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Encode gives a command as the content of a log entry. It refuses what Decode refuses: once in
// the log, such an entry would stop every member.
//
// Errors: Invalid.
func Encode(cmd Command) ([]byte, error) {
	p := &coordv1.Command{Client: uint64(cmd.Client), Sequence: cmd.Sequence, Owner: cmd.Owner}
	if err := encodeOp(p, cmd.Op); err != nil {
		return nil, fault.Wrap("coord.Encode", err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, fault.As("coord.Encode", fault.Invalid, err)
	}
	if _, err := Decode(b); err != nil {
		return nil, fault.Wrap("coord.Encode", err)
	}
	return b, nil
}

// Decode reads the content of a log entry. It knows one encoding of a command, the shortest
// one of fields that it knows: a member that cannot decode a committed entry is too old to
// apply it, must not skip it, and stops.
//
// Errors: Invalid.
func Decode(b []byte) (Command, error) {
	const op = "coord.Decode"
	var p coordv1.Command
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &p); err != nil {
		return Command{}, fault.As(op, fault.Invalid, err)
	}
	if size := proto.Size(&p); size != len(b) {
		return Command{}, fault.New(op, fault.Invalid, "%d of %d bytes are fields that are not known or not in their shortest form", len(b)-size, len(b))
	}
	cmd := Command{Client: ClientID(p.GetClient()), Sequence: p.GetSequence(), Owner: p.GetOwner()}
	var err error
	cmd.Op, err = decodeOp(&p)
	return cmd, fault.Wrap(op, err)
}

func encodeOp(p *coordv1.Command, op Op) error {
	switch o := op.(type) {
	case *Write:
		w, err := encodeWrite(o)
		p.Op = &coordv1.Command_Write{Write: w}
		return err
	case *Compact:
		p.Op = &coordv1.Command_Compact{Compact: &coordv1.Compact{Revision: int64(o.Revision)}}
	case *LeaseGrant:
		p.Op = &coordv1.Command_LeaseGrant{LeaseGrant: &coordv1.LeaseGrant{Id: int64(o.ID), TtlMs: o.TTL}}
	case *LeaseRevoke:
		p.Op = &coordv1.Command_LeaseRevoke{LeaseRevoke: &coordv1.LeaseRevoke{Id: int64(o.ID)}}
	case *Expire:
		p.Op = &coordv1.Command_Expire{Expire: encodeExpire(o)}
	case *Lock:
		p.Op = &coordv1.Command_Lock{Lock: &coordv1.Lock{
			Name: o.Name, Lease: int64(o.Lease), Mode: coordv1.LockMode(o.Mode), Permits: o.Permits, Wait: o.Wait, Metadata: o.Metadata,
		}}
	case *Unlock:
		p.Op = &coordv1.Command_Unlock{Unlock: &coordv1.Unlock{Name: o.Name, Lease: int64(o.Lease), Token: int64(o.Token)}}
	case *Cancel:
		p.Op = &coordv1.Command_Cancel{Cancel: &coordv1.Cancel{Name: o.Name, Lease: int64(o.Lease), Token: int64(o.Token)}}
	default:
		return encodeAdmin(p, op)
	}
	return nil
}

func encodeAdmin(p *coordv1.Command, op Op) error {
	switch o := op.(type) {
	case *RegisterBatch:
		p.Op = &coordv1.Command_RegisterBatch{RegisterBatch: encodeBatch(o)}
	case *SetRequirement:
		p.Op = &coordv1.Command_SetRequirement{SetRequirement: &coordv1.SetRequirement{
			Name: o.Requirement.Name, Requirement: encodeRequirement(&o.Requirement),
		}}
	case *DeleteRequirement:
		p.Op = &coordv1.Command_DeleteRequirement{DeleteRequirement: &coordv1.DeleteRequirement{Name: o.Name}}
	case *ClientOpen:
		p.Op = &coordv1.Command_ClientOpen{ClientOpen: &coordv1.ClientOpen{}}
	case *ClientClose:
		p.Op = &coordv1.Command_ClientClose{ClientClose: &coordv1.ClientClose{}}
	case *ClientsExpire:
		p.Op = &coordv1.Command_ClientsExpire{ClientsExpire: &coordv1.ClientsExpire{Term: o.Term, IdleSince: o.IdleSince}}
	case *Configure:
		p.Op = &coordv1.Command_Configure{Configure: &coordv1.Configure{Limits: encodeLimits(&o.Limits)}}
	case *BumpIncarnation:
		p.Op = &coordv1.Command_Reincarnate{Reincarnate: &coordv1.Reincarnate{Incarnation: o.Incarnation}}
	default:
		return fault.Invalidf("op", nil, "is missing")
	}
	return nil
}

func encodeExpire(o *Expire) *coordv1.Expire {
	p := &coordv1.Expire{Term: o.Term, Leases: make([]*coordv1.LeaseRef, 0, len(o.Leases))}
	for _, ref := range o.Leases {
		p.Leases = append(p.Leases, &coordv1.LeaseRef{Id: int64(ref.ID), Granted: ref.Granted})
	}
	return p
}

func encodeWrite(o *Write) (*coordv1.Write, error) {
	p := &coordv1.Write{}
	for _, g := range o.If {
		guard := &coordv1.Guard{Condition: &coordv1.Guard_Revision{
			Revision: &coordv1.RevisionGuard{Key: []byte(g.key), ModRevision: int64(g.mod)},
		}}
		if g.held {
			guard.Condition = &coordv1.Guard_Token{Token: &coordv1.TokenGuard{Lock: g.lock, Token: int64(g.token)}}
		}
		p.Guards = append(p.Guards, guard)
	}
	for i, c := range o.Then {
		change := &coordv1.Change{}
		switch {
		case c.Put != nil && c.Delete == nil:
			change.Change = &coordv1.Change_Put{Put: &coordv1.Put{Key: []byte(c.Put.Key), Value: c.Put.Value, Lease: int64(c.Put.Lease)}}
		case c.Delete != nil && c.Put == nil:
			change.Change = &coordv1.Change_Delete{Delete: &coordv1.Span{From: []byte(c.Delete.From), To: []byte(c.Delete.To)}}
		default:
			return nil, fault.Invalidf(fmt.Sprintf("changes[%d]", i), nil, "must be one put or one deletion")
		}
		p.Changes = append(p.Changes, change)
	}
	return p, nil
}

func encodeLimits(l *Limits) *coordv1.Limits {
	return &coordv1.Limits{
		Keys: l.Keys, Bytes: l.Bytes, KeyBytes: l.KeyBytes, ValueBytes: l.ValueBytes, OwnerBytes: l.OwnerBytes,
		Changes: l.Changes, Leases: l.Leases, LeaseKeys: l.LeaseKeys, MinTtlMs: l.MinTTL, MaxTtlMs: l.MaxTTL,
		Queue: l.Queue, Claims: l.Claims, Clients: l.Clients, HistoryEvents: l.HistoryEvents, HistoryBytes: l.HistoryBytes,
		PerOwner: &coordv1.Quota{
			Leases: l.PerOwner.Leases, Claims: l.PerOwner.Claims, Clients: l.PerOwner.Clients, Bytes: l.PerOwner.Bytes,
		},
	}
}

func decodeOp(p *coordv1.Command) (Op, error) {
	switch o := p.GetOp().(type) {
	case *coordv1.Command_Write:
		return decodeWrite(o.Write)
	case *coordv1.Command_Compact:
		return &Compact{Revision: Revision(o.Compact.GetRevision())}, nil
	case *coordv1.Command_LeaseGrant:
		return &LeaseGrant{ID: LeaseID(o.LeaseGrant.GetId()), TTL: o.LeaseGrant.GetTtlMs()}, nil
	case *coordv1.Command_LeaseRevoke:
		return &LeaseRevoke{ID: LeaseID(o.LeaseRevoke.GetId())}, nil
	case *coordv1.Command_Expire:
		return decodeExpire(o.Expire), nil
	case *coordv1.Command_Lock:
		return decodeLock(o.Lock)
	case *coordv1.Command_Unlock:
		return &Unlock{Name: o.Unlock.GetName(), Lease: LeaseID(o.Unlock.GetLease()), Token: Token(o.Unlock.GetToken())}, nil
	case *coordv1.Command_Cancel:
		return &Cancel{Name: o.Cancel.GetName(), Lease: LeaseID(o.Cancel.GetLease()), Token: Token(o.Cancel.GetToken())}, nil
	case *coordv1.Command_RegisterBatch:
		return decodeBatch(o.RegisterBatch), nil
	case *coordv1.Command_SetRequirement:
		return decodeSet(o.SetRequirement)
	case *coordv1.Command_DeleteRequirement:
		return &DeleteRequirement{Name: o.DeleteRequirement.GetName()}, nil
	case *coordv1.Command_ClientOpen:
		return &ClientOpen{}, nil
	case *coordv1.Command_ClientClose:
		return &ClientClose{}, nil
	case *coordv1.Command_ClientsExpire:
		return &ClientsExpire{Term: o.ClientsExpire.GetTerm(), IdleSince: o.ClientsExpire.GetIdleSince()}, nil
	case *coordv1.Command_Configure:
		return &Configure{Limits: decodeLimits(o.Configure.GetLimits())}, nil
	case *coordv1.Command_Reincarnate:
		return &BumpIncarnation{Incarnation: o.Reincarnate.GetIncarnation()}, nil
	}
	return nil, fault.Invalidf("op", nil, "is missing")
}

func decodeLock(p *coordv1.Lock) (Op, error) {
	if p.GetMode() < 0 || p.GetMode() > coordv1.LockMode(Permit) {
		return nil, fault.Invalidf("mode", p.GetMode(), "is not known")
	}
	return &Lock{
		Name: p.GetName(), Lease: LeaseID(p.GetLease()), Mode: Mode(p.GetMode()), Permits: p.GetPermits(),
		Wait: p.GetWait(), Metadata: p.GetMetadata(),
	}, nil
}

func decodeExpire(p *coordv1.Expire) *Expire {
	o := &Expire{Term: p.GetTerm(), Leases: make([]LeaseRef, 0, len(p.GetLeases()))}
	for _, ref := range p.GetLeases() {
		o.Leases = append(o.Leases, LeaseRef{ID: LeaseID(ref.GetId()), Granted: ref.GetGranted()})
	}
	return o
}

func decodeWrite(p *coordv1.Write) (Op, error) {
	o := &Write{}
	for i, guard := range p.GetGuards() {
		switch g := guard.GetCondition().(type) {
		case *coordv1.Guard_Revision:
			o.If = append(o.If, IfRevision(string(g.Revision.GetKey()), Revision(g.Revision.GetModRevision())))
		case *coordv1.Guard_Token:
			o.If = append(o.If, IfHolds(g.Token.GetLock(), Token(g.Token.GetToken())))
		default:
			return nil, fault.Invalidf(fmt.Sprintf("guards[%d]", i), nil, "has no condition")
		}
	}
	for i, change := range p.GetChanges() {
		switch c := change.GetChange().(type) {
		case *coordv1.Change_Put:
			o.Then = append(o.Then, Change{Put: &Put{Key: string(c.Put.GetKey()), Value: c.Put.GetValue(), Lease: LeaseID(c.Put.GetLease())}})
		case *coordv1.Change_Delete:
			o.Then = append(o.Then, Change{Delete: &Span{From: string(c.Delete.GetFrom()), To: string(c.Delete.GetTo())}})
		default:
			return nil, fault.Invalidf(fmt.Sprintf("changes[%d]", i), nil, "must be one put or one deletion")
		}
	}
	return o, nil
}

func decodeLimits(p *coordv1.Limits) Limits {
	return Limits{
		Keys: p.GetKeys(), Bytes: p.GetBytes(), KeyBytes: p.GetKeyBytes(), ValueBytes: p.GetValueBytes(), OwnerBytes: p.GetOwnerBytes(),
		Changes: p.GetChanges(), Leases: p.GetLeases(), LeaseKeys: p.GetLeaseKeys(), MinTTL: p.GetMinTtlMs(), MaxTTL: p.GetMaxTtlMs(),
		Queue: p.GetQueue(), Claims: p.GetClaims(), Clients: p.GetClients(), HistoryEvents: p.GetHistoryEvents(), HistoryBytes: p.GetHistoryBytes(),
		PerOwner: Quota{
			Leases: p.GetPerOwner().GetLeases(), Claims: p.GetPerOwner().GetClaims(),
			Clients: p.GetPerOwner().GetClients(), Bytes: p.GetPerOwner().GetBytes(),
		},
	}
}
