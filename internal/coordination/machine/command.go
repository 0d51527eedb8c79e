package machine

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// call is a command under way.
type call struct {
	index  uint64
	term   uint64
	owner  string
	random uint64
	client coord.ClientID
	answer *coordv1.Result // to fill
	header *apiv1.Header   // of the response
}

// run executes a request and fills its answer. With an error it leaves the machine unchanged.
func (c *call) run(m *Machine, cmd *coordv1.Command) error {
	if err := m.merging.admit(cmd); err != nil {
		return err
	}
	if err := m.limits.ownerName(c.owner); err != nil {
		return err
	}
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		return c.lock(m, r.Lock, r.Lock.GetTimeoutMs() != 0)
	case *coordv1.Command_TryLock:
		return c.lock(m, r.TryLock, false)
	case *coordv1.Command_Unlock:
		return c.unlock(m, r.Unlock)
	case *coordv1.Command_LeaseGrant:
		return c.grant(m, r.LeaseGrant)
	case *coordv1.Command_LeaseRevoke:
		return c.revoke(m, r.LeaseRevoke)
	case *coordv1.Command_Txn:
		return c.txn(m, r.Txn)
	case *coordv1.Command_PublishInstances:
		return c.publish(m, r.PublishInstances)
	case *coordv1.Command_SetRequirement:
		return c.setRequirement(m, r.SetRequirement)
	case *coordv1.Command_DeleteRequirement:
		return c.deleteRequirement(m, r.DeleteRequirement)
	case *coordv1.Command_OpenClient:
		return c.openClient(m)
	case *coordv1.Command_CloseClient:
		return c.closeClient(m)
	}
	return c.runInternal(m, cmd)
}

// runInternal executes a request of members.
func (c *call) runInternal(m *Machine, cmd *coordv1.Command) error {
	done := &coordv1.Done{Header: c.header}
	c.answer.Response = &coordv1.Result_Done{Done: done}
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Cancel:
		return c.cancel(m, r.Cancel, done)
	case *coordv1.Command_Compact:
		return compact(m, r.Compact)
	case *coordv1.Command_Expire:
		return c.expire(m, r.Expire, done)
	case *coordv1.Command_ClientsExpire:
		return c.expireClients(m, r.ClientsExpire, done)
	case *coordv1.Command_Configure:
		return configure(m, r.Configure)
	case *coordv1.Command_BumpIncarnation:
		return bumpIncarnation(m, r.BumpIncarnation)
	case *coordv1.Command_SetLevel:
		return setLevel(m, r.SetLevel)
	case *coordv1.Command_SetAddresses:
		return setAddresses(m, r.SetAddresses)
	case *coordv1.Command_Dissolve:
		return c.dissolve(m, r.Dissolve, done)
	}
	return fault.Refused(fault.Unsupported, "op", "is not known")
}
