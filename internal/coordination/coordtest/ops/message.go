package ops

import (
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Message returns a command as the message that peers send and the log holds.
//
// Errors: Invalid.
func Message(c Command) (*coordv1.Command, error) {
	m := &coordv1.Command{}
	if err := setRequest(m, c.Op); err != nil {
		return nil, fault.Wrap("coord.Message", err)
	}
	m.Owner, m.Random = c.Owner, c.Random
	var attempt *apiv1.Attempt
	if c.Client != 0 {
		attempt = &apiv1.Attempt{Client: uint64(c.Client), Sequence: c.Sequence}
	}
	m.Attempt = attempt
	if r := m.GetCloseClient(); r != nil {
		r.Client = uint64(c.Client)
	}
	return m, nil
}

func setRequest(m *coordv1.Command, op Op) error {
	switch o := op.(type) {
	case *Txn:
		r, err := txnRequest(o)
		m.Request = &coordv1.Command_Txn{Txn: r}
		return err
	case *LeaseGrant:
		m.Request = &coordv1.Command_LeaseGrant{LeaseGrant: &apiv1.LeaseGrantRequest{Id: int64(o.ID), TtlMs: o.TTL, Application: o.Application}}
		return checkUTF8("application", o.Application)
	case *LeaseRevoke:
		m.Request = &coordv1.Command_LeaseRevoke{LeaseRevoke: &apiv1.LeaseRevokeRequest{Id: int64(o.ID)}}
	case *Lock:
		return setLock(m, o)
	case *Unlock:
		m.Request = &coordv1.Command_Unlock{Unlock: &apiv1.UnlockRequest{Name: o.Name, LeaseId: int64(o.Lease), FencingToken: int64(o.Token)}}
		return checkUTF8("name", o.Name)
	case *RegisterBatch:
		m.Request = &coordv1.Command_PublishInstances{PublishInstances: publishRequest(o)}
	case *SetRequirement:
		r, err := requirementRequest(&o.Requirement)
		m.Request = &coordv1.Command_SetRequirement{SetRequirement: r}
		return err
	case *DeleteRequirement:
		m.Request = &coordv1.Command_DeleteRequirement{DeleteRequirement: &apiv1.DeleteRequirementRequest{Name: o.Name}}
		return checkUTF8("name", o.Name)
	case *ClientOpen:
		m.Request = &coordv1.Command_OpenClient{OpenClient: &apiv1.OpenClientRequest{}}
	case *ClientClose:
		m.Request = &coordv1.Command_CloseClient{CloseClient: &apiv1.CloseClientRequest{}}
	default:
		return setInternal(m, op)
	}
	return nil
}

// setInternal sets the request of an operation that only members propose.
func setInternal(m *coordv1.Command, op Op) error {
	switch o := op.(type) {
	case *Compact:
		m.Request = &coordv1.Command_Compact{Compact: &coordv1.Compact{Revision: int64(o.Revision)}}
	case *ClientsExpire:
		m.Request = &coordv1.Command_ClientsExpire{ClientsExpire: &coordv1.ClientsExpire{Term: o.Term, IdleSince: o.IdleSince}}
	case *Configure:
		m.Request = &coordv1.Command_Configure{Configure: &coordv1.Configure{Limits: o.Limits.Message()}}
	default:
		return fault.Invalidf("op", nil, "is missing")
	}
	return nil
}

func setLock(m *coordv1.Command, o *Lock) error {
	if o.Mode > coord.Permit {
		return fault.Invalidf("mode", o.Mode, "is not known")
	}
	if o.Wait {
		m.Request = &coordv1.Command_Lock{Lock: &apiv1.LockRequest{
			TimeoutMs: -1, Name: o.Name, LeaseId: int64(o.Lease), Mode: apiv1.ShareMode(o.Mode), Permits: o.Permits, Metadata: o.Metadata,
		}}
	} else {
		m.Request = &coordv1.Command_TryLock{TryLock: &apiv1.TryLockRequest{
			Name: o.Name, LeaseId: int64(o.Lease), Mode: apiv1.ShareMode(o.Mode), Permits: o.Permits, Metadata: o.Metadata,
		}}
	}
	return checkUTF8("name", o.Name)
}

// checkUTF8 refuses a text that a message cannot carry.
func checkUTF8(field, s string) error {
	if !utf8.ValidString(s) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

func publishRequest(o *RegisterBatch) *apiv1.PublishInstancesRequest {
	r := &apiv1.PublishInstancesRequest{LeaseId: int64(o.Lease), Generation: o.Generation, Puts: make([]*apiv1.DirectoryEntry, len(o.Puts))}
	for i, e := range o.Puts {
		r.Puts[i] = &apiv1.DirectoryEntry{Key: []byte(e.Key), Value: e.Value, Adopt: e.Adopt, Since: int64(e.Since), Principal: e.Principal}
	}
	for _, key := range o.Deletes {
		r.Deletes = append(r.Deletes, []byte(key))
	}
	if o.Replace != nil {
		r.Replace = true
		r.Key, r.RangeEnd = o.Replace.Bounds()
	}
	return r
}

func requirementRequest(r *requirements.Requirement) (*apiv1.SetRequirementRequest, error) {
	if r.Min < 0 || r.Min > math.MaxInt32 {
		return nil, fault.Invalidf("min", r.Min, "must be 1 to %d", requirements.MaxInstances)
	}
	q := &agentv1.DiscoverRequest{}
	if err := proto.Unmarshal(r.Question, q); err != nil {
		return nil, fault.Invalidf("selector", nil, "is no question for instances")
	}
	return &apiv1.SetRequirementRequest{Name: r.Name, Min: uint32(r.Min), Query: q}, checkUTF8("name", r.Name)
}

func txnRequest(o *Txn) (*apiv1.TxnRequest, error) {
	r := &apiv1.TxnRequest{}
	for i, c := range o.If {
		if err := checkUTF8(fmt.Sprintf("compare[%d].lock", i), c.Lock); err != nil {
			return nil, err
		}
		r.Compare = append(r.Compare, compareMessage(c))
	}
	var err error
	if r.Then, err = stepMessages("then", o.Then); err != nil {
		return nil, err
	}
	r.Else, err = stepMessages("else", o.Else)
	return r, err
}

func compareMessage(c Compare) *apiv1.Compare {
	m := &apiv1.Compare{Target: apiv1.Compare_Target(c.Target), Operator: apiv1.Compare_Operator(c.Operator), Number: c.Number}
	switch c.Target {
	case Holds:
		m.Lock, m.FencingToken = c.Lock, int64(c.Token)
		return m
	case Value:
		m.Value = []byte(c.Value)
	}
	m.Key, m.RangeEnd = ends(c.Span)
	return m
}

func stepMessages(branch string, steps []Step) ([]*apiv1.TxnStep, error) {
	var all []*apiv1.TxnStep
	for i, s := range steps {
		if err := s.Check(); err != nil {
			return nil, fault.In(fmt.Sprintf("%s[%d]", branch, i), err)
		}
		m := &apiv1.TxnStep{}
		switch {
		case s.Put != nil:
			m.Step = &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{
				Key: []byte(s.Put.Key), Value: s.Put.Value, Lease: int64(s.Put.Lease), PrevKv: s.Prev,
				KeepValue: s.Put.KeepValue, KeepLease: s.Put.KeepLease,
			}}
		case s.Delete != nil:
			from, to := ends(*s.Delete)
			m.Step = &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: from, RangeEnd: to, PrevKv: s.Prev}}
		case s.Txn != nil:
			r, err := txnRequest(s.Txn)
			if err != nil {
				return nil, fault.In(fmt.Sprintf("%s[%d].txn", branch, i), err)
			}
			m.Step = &apiv1.TxnStep_Txn{Txn: &apiv1.TxnBranch{Compare: r.GetCompare(), Then: r.GetThen(), Else: r.GetElse()}}
		default:
			m.Step = &apiv1.TxnStep_Range{Range: readMessage(s.Read)}
		}
		all = append(all, m)
	}
	return all, nil
}

func readMessage(r *Read) *apiv1.TxnRange {
	from, to := ends(r.Span)
	return &apiv1.TxnRange{
		Key: from, RangeEnd: to, Revision: int64(r.At), Limit: uint32(min(max(r.Limit, 0), math.MaxUint32)),
		Order: apiv1.TxnRange_Order(r.Order), Descending: r.Descending, KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
		MinModRevision: int64(r.MinMod), MaxModRevision: int64(r.MaxMod),
		MinCreateRevision: int64(r.MinCreate), MaxCreateRevision: int64(r.MaxCreate),
	}
}

// ends is Bounds without an end for the span of one key.
func ends(s coord.Span) (from, to []byte) {
	if s.From != "" && s == coord.Exactly(s.From) {
		return []byte(s.From), nil
	}
	return s.Bounds()
}
