package coord

import "github.com/blackhole/blackhole/pkg/fault"

// Fence is what a resource outside the group does with the tokens that come with its writes:
// it remembers the greatest and refuses any below, so that a holder who slept past the
// end of its lease cannot undo the work of its successor. The zero Fence has seen none. Keep
// one for each lock, as durable as the resource, and check under the resource's own mutex.
type Fence struct {
	// Highest token accepted.
	Highest Token
}

// Check accepts a token at or above the highest; a holder may write many times.
//
// Errors: Invalid for no token; Conflict for a stale one.
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

// CheckOnce is Check for a resource to which each holder writes once: it refuses the highest
// token as well.
//
// Errors: as Check; Conflict for a token used already.
func (f *Fence) CheckOnce(token Token) error {
	if token > 0 && token == f.Highest {
		return fault.Wrap("coord.Fence", fault.Refused(fault.Conflict, "token", "%d was used already", token))
	}
	return f.Check(token)
}
