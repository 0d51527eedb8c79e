package publisher

import (
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Event is what happened. Leader, Local and Woke happen at any time; Pulled, Granted, Renewed and Sent
// answer the Action of their kind, exactly once each, whatever became of it.
type Event interface{ event() }

// Leader says that a leader is known, or with term 0 that none is.
type Leader struct{ Term uint64 }

// Local is a change of what runs here. Those of a key come in order. One that comes while a Pull is under way
// counts for more than the answer, so that it need not be told whether the answer has it.
type Local struct {
	Puts    []coord.Entry // Adopt: its application registered it here, wherever it was before
	Deletes []string      // keys
}

// Pulled answers Pull: all that runs here, at some moment since.
type Pulled struct{ Entries []coord.Entry }

// Granted answers Grant.
type Granted struct {
	Lease coord.LeaseID
	TTL   time.Duration
	Err   error
}

// Renewed answers Renew.
type Renewed struct {
	Renewal coord.Renewal
	Err     error
}

// Sent answers Send.
type Sent struct {
	Result coord.Result
	Err    error
}

// Woke says that the time has come that was asked for. It may come too early, and more than once.
type Woke struct{}

func (Leader) event()  {}
func (Local) event()   {}
func (Pulled) event()  {}
func (Granted) event() {}
func (Renewed) event() {}
func (Sent) event()    {}
func (Woke) event()    {}

// Action is what is to be done: Pull, Grant, Renew or Send. There is one under way at a time.
type Action interface{ action() }

// Pull asks for all that runs here.
type Pull struct{}

// Grant asks the group for a lease: coord.LeaseGrant.
type Grant struct {
	Lease coord.LeaseID // 0: the group chooses
	TTL   time.Duration
}

// Renew asks the group to renew the lease: coord.Actor.KeepAlive.
type Renew struct{ Lease coord.LeaseID }

// Send gives the group a batch.
type Send struct{ Batch *coord.RegisterBatch }

func (Pull) action()  {}
func (Grant) action() {}
func (Renew) action() {}
func (Send) action()  {}

// Step is what is to be done, and to be told.
type Step struct {
	Do   Action        // nil: nothing
	Wake time.Duration // when to send Woke at the latest; it replaces the last
	// Settled is whether some entries were committed, see Committed.
	Settled bool
	// Lost are the keys of which another owner had the last word: the application is registered elsewhere, or was
	// deregistered there, and should be let go here, unless it says something else.
	Lost []string
	// Refused are the keys that the group will not have, and why. They are left out until they change.
	Refused map[string]error
}
