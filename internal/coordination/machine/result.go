package machine

import "github.com/blackhole/blackhole/pkg/coord"

// ApplyEffects are the changes of a command, for watchers and waiters. Its slices stay valid until
// the next Apply; their elements stay.
type ApplyEffects struct {
	// Events of the command, all at one revision, by key, at most one per key.
	Events []coord.Event
	// Grants are new holders; holders of one lock are sorted by token.
	Grants []Grant
	// Granted and Ended are the leases that begin and end.
	Granted []coord.Lease
	Ended   []coord.LeaseID
}

// Grant is a claim that now holds its lock.
type Grant struct {
	Lock  string
	Lease coord.LeaseID
	Token coord.Token
}
