package publisher

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Event is an input of Advance. Leader, Local and Tick arrive at any time.
// Listed, LeaseGranted, Renewed and PublishDone each answer one Action, whatever
// its result.
type Event interface{ event() }

// Leader reports the leader's term, or 0 without a known leader.
type Leader struct{ Term uint64 }

// Local reports changes of local entries, in order for each key. A change
// during a Resync overrides the answer, which may or may not contain it.
type Local struct {
	Puts    []directory.Entry // Adopt: the application registered here
	Deletes []string          // keys
}

// Listed answers Resync with all local entries at some later moment.
type Listed struct{ Entries []directory.Entry }

// LeaseGranted answers Grant.
type LeaseGranted struct {
	Lease coord.LeaseID
	TTL   time.Duration
	Err   error
}

// Renewed answers Renew.
type Renewed struct {
	Answer *apiv1.LeaseKeepAliveResponse
	Err    error
}

// PublishDone answers Send.
type PublishDone struct {
	Answer  *apiv1.PublishInstancesResponse
	Refused []string // those of Answer.Foreign that were sent with Adopt: another caller's instance is at another owner
	Err     error
}

// Tick reports the time of Step.Wake. An early or repeated Tick does no harm.
type Tick struct{}

func (Leader) event()       {}
func (Local) event()        {}
func (Listed) event()       {}
func (LeaseGranted) event() {}
func (Renewed) event()      {}
func (PublishDone) event()  {}
func (Tick) event()         {}

// Action is a request of the Publisher: Resync, Grant, Renew or Send. At most
// one is in flight.
type Action interface{ action() }

// Resync asks for all local entries.
type Resync struct{}

// Grant asks the group for a lease.
type Grant struct {
	Lease coord.LeaseID // 0: the group chooses an id
	TTL   time.Duration
}

// Renew asks the group to renew the lease.
type Renew struct{ Lease coord.LeaseID }

// Send asks the group to commit a batch.
type Send struct {
	Batch *apiv1.PublishInstancesRequest
}

func (Resync) action() {}
func (Grant) action()  {}
func (Renew) action()  {}
func (Send) action()   {}

// Step is the output of Advance.
type Step struct {
	Do   Action        // nil: no action
	Wake time.Duration // latest time of the next Tick; replaces the previous one; 0: no Tick

	// Settled reports new commits, see Committed.
	Settled bool
	// Lost lists keys another owner has taken over or removed since. The local
	// application registers again or has moved.
	Lost []string
	// Refused lists keys of registrations that the group did not take: the instance of another caller is at another
	// owner, whose lease lasts.
	Refused []string
	// Rejected maps keys to the group's reason for not accepting the entry. The
	// entry stays out until its value changes, or for want of room until a later attempt.
	Rejected map[string]error
}
