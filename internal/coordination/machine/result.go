package machine

import "github.com/blackhole/blackhole/pkg/coord"

// ApplyEffects is what a command did to the state: for those who watch and wait.
// Its slices are valid until the next Apply; what they point to stays.
type ApplyEffects struct {
	// Events of the command, all of one revision, ordered by key, each key at most once.
	Events []coord.Event
	// Grants are the claims that hold from now on, each lock's in the order of their tokens.
	Grants []Grant
	// Granted and Ended are the leases that begin and end with the command.
	Granted []coord.Lease
	Ended   []coord.LeaseID
}

// Grant is a claim that came to hold its lock.
type Grant struct {
	Lock  string
	Lease coord.LeaseID
	Token coord.Token
}
