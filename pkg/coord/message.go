package coord

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Encoded is an operation in the form of its request. A front end forwards the request unchanged:
// the leader receives the same message, and the log holds it. Only the state machine reads it.
type Encoded struct {
	Message *coordv1.Command // with a Request
}

func (*Encoded) op() {}

// Waits returns the lock and the lease of a command that waits for a lock, or false.
func (c *Command) Waits() (name string, lease LeaseID, ok bool) {
	switch o := c.Op.(type) {
	case *Lock:
		return o.Name, o.Lease, o.Wait
	case *Encoded:
		if r, ok := o.Message.GetRequest().(*coordv1.Command_Lock); ok {
			return r.Lock.GetName(), LeaseID(r.Lock.GetLeaseId()), true
		}
	}
	return "", 0, false
}

// AboutClients reports whether a command opens or closes a client. Such commands need no client.
func (c *Command) AboutClients() bool {
	switch o := c.Op.(type) {
	case *ClientOpen, *ClientClose:
		return true
	case *Encoded:
		switch o.Message.GetRequest().(type) {
		case *coordv1.Command_OpenClient, *coordv1.Command_CloseClient:
			return true
		}
	}
	return false
}

// Message returns a command as the message that peers send and the log holds. The message of an
// Encoded is the caller's, changed in place.
//
// Errors: Invalid.
func Message(c Command) (*coordv1.Command, error) {
	var m *coordv1.Command
	if o, ok := c.Op.(*Encoded); ok {
		m = o.Message
	} else {
		m = &coordv1.Command{}
		if err := setRequest(m, c.Op); err != nil {
			return nil, fault.Wrap("coord.Message", err)
		}
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
	case *Cancel:
		m.Request = &coordv1.Command_Cancel{Cancel: &coordv1.Cancel{Name: o.Name, Lease: int64(o.Lease), Token: int64(o.Token)}}
		return checkUTF8("name", o.Name)
	case *Compact:
		m.Request = &coordv1.Command_Compact{Compact: &coordv1.Compact{Revision: int64(o.Revision)}}
	case *ClientsExpire:
		m.Request = &coordv1.Command_ClientsExpire{ClientsExpire: &coordv1.ClientsExpire{Term: o.Term, IdleSince: o.IdleSince}}
	case *Configure:
		m.Request = &coordv1.Command_Configure{Configure: &coordv1.Configure{Limits: o.Limits.Message()}}
	case *SetLevel:
		m.Request = &coordv1.Command_SetLevel{SetLevel: &coordv1.SetLevel{Level: o.Level}}
	case *Dissolve:
		m.Request = &coordv1.Command_Dissolve{Dissolve: &coordv1.Dissolve{Successor: []byte(o.Successor), Force: o.Force, Reached: int64(o.Reached)}}
	case *RaiseRevision:
		m.Request = &coordv1.Command_RaiseRevision{RaiseRevision: &coordv1.RaiseRevision{To: int64(o.To), Resume: o.Resume}}
	default:
		return fault.Invalidf("op", nil, "is missing")
	}
	return nil
}

func setLock(m *coordv1.Command, o *Lock) error {
	if o.Mode > Permit {
		return fault.Invalidf("mode", o.Mode, "is not known")
	}
	if o.Wait {
		m.Request = &coordv1.Command_Lock{Lock: &apiv1.LockRequest{
			Name: o.Name, LeaseId: int64(o.Lease), Mode: apiv1.ShareMode(o.Mode), Permits: o.Permits, Metadata: o.Metadata,
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

func requirementRequest(r *Requirement) (*apiv1.SetRequirementRequest, error) {
	if r.Min < 0 || r.Min > math.MaxInt32 {
		return nil, fault.Invalidf("min", r.Min, "must be 1 to %d", MaxRequired)
	}
	q := &agentv1.DiscoverRequest{}
	if err := proto.Unmarshal(r.Question, q); err != nil {
		return nil, fault.Invalidf("selector", nil, "is no question for instances")
	}
	return &apiv1.SetRequirementRequest{Name: r.Name, Min: uint32(r.Min), Query: q}, checkUTF8("name", r.Name)
}
