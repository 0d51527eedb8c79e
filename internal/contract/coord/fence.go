package coord

import "github.com/blackhole/blackhole/pkg/fault"

// Fence guards a resource outside the group by the tokens of its writes. It remembers the greatest
// token and refuses smaller ones, so that a holder who slept past the end of its lease cannot undo
// its successor's work. The zero Fence has no token. Keep one Fence per lock, as durable as the
// resource, and check under the resource's mutex.
type Fence struct {
	// Highest token accepted.
	Highest Token
}

// Check accepts a token at or above the highest. A holder may write many times.
//
// Errors: Invalid for token 0 or below; Conflict for a stale token.
func (f *Fence) Check(token Token) error {
	const op = "coord.Fence"
	if token <= 0 {
		return fault.Wrap(op, fault.Invalidf("token", token, "must be above 0"))
	}
	if token < f.Highest {
		return fault.Wrap(op, fault.Refused(fault.Conflict, "token", "%d is stale, %d was seen", token, f.Highest))
	}
	f.Highest = token
	return nil
}
