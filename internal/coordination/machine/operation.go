package machine

import "github.com/blackhole/blackhole/pkg/coord"

// operation is an operation of the contract with its effect on the machine.
type operation interface {
	// run executes the operation and writes its answer into the result. With an error it leaves the
	// machine unchanged.
	run(m *Machine, c *call) error
}

// call holds the facts that an operation needs about its log entry.
type call struct {
	index  uint64
	term   uint64
	client coord.ClientID
	owner  string
	random uint64
	result *coord.Result
}

type (
	txnOp               coord.Txn
	compactOp           coord.Compact
	leaseGrantOp        coord.LeaseGrant
	leaseRevokeOp       coord.LeaseRevoke
	expireOp            coord.Expire
	lockOp              coord.Lock
	unlockOp            coord.Unlock
	cancelOp            coord.Cancel
	registerBatchOp     coord.RegisterBatch
	setRequirementOp    coord.SetRequirement
	deleteRequirementOp coord.DeleteRequirement
	clientOpenOp        coord.ClientOpen
	clientCloseOp       coord.ClientClose
	clientsExpireOp     coord.ClientsExpire
	configureOp         coord.Configure
	bumpIncarnationOp   coord.BumpIncarnation
	setLevelOp          coord.SetLevel
	dissolveOp          coord.Dissolve
	raiseRevisionOp     coord.RaiseRevision
)

// operationOf returns the operation of a command, or false for an unknown one.
func operationOf(op coord.Op) (operation, bool) {
	switch o := op.(type) {
	case *coord.Txn:
		return (*txnOp)(o), true
	case *coord.Compact:
		return (*compactOp)(o), true
	case *coord.LeaseGrant:
		return (*leaseGrantOp)(o), true
	case *coord.LeaseRevoke:
		return (*leaseRevokeOp)(o), true
	case *coord.Expire:
		return (*expireOp)(o), true
	case *coord.Lock:
		return (*lockOp)(o), true
	case *coord.Unlock:
		return (*unlockOp)(o), true
	case *coord.Cancel:
		return (*cancelOp)(o), true
	case *coord.RegisterBatch:
		return (*registerBatchOp)(o), true
	case *coord.SetRequirement:
		return (*setRequirementOp)(o), true
	case *coord.DeleteRequirement:
		return (*deleteRequirementOp)(o), true
	case *coord.ClientOpen:
		return (*clientOpenOp)(o), true
	case *coord.ClientClose:
		return (*clientCloseOp)(o), true
	case *coord.ClientsExpire:
		return (*clientsExpireOp)(o), true
	case *coord.Configure:
		return (*configureOp)(o), true
	case *coord.BumpIncarnation:
		return (*bumpIncarnationOp)(o), true
	case *coord.SetLevel:
		return (*setLevelOp)(o), true
	case *coord.Dissolve:
		return (*dissolveOp)(o), true
	case *coord.RaiseRevision:
		return (*raiseRevisionOp)(o), true
	}
	return nil, false
}
