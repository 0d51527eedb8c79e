package coord

import "github.com/blackhole/blackhole/pkg/fault"

// Result is what one command came to: the answer to who proposed it.
type Result struct {
	// Revision of the keyspace after the command.
	Revision Revision
	// Err is why nothing was done; nil when it was. It is a *fault.Error with a kind, mostly
	// a field, and no value.
	Err error
	// Lock answers Lock, Unlock and Cancel.
	Lock LockResult
	// Lease and TTL, in milliseconds, answer LeaseGrant.
	Lease LeaseID
	TTL   int64
	// Client answers ClientOpen.
	Client ClientID
	// Changed counts the keys put and deleted, those of ended leases included, and the clients
	// forgotten by ClientsExpire.
	Changed int
	// Ended lists the leases that LeaseRevoke or Expire ended.
	Ended []LeaseID
	// Foreign lists the keys of a RegisterBatch that were not put since the last word on them is
	// another owner's, in ascending order.
	Foreign []string
	// Since has for each put of a RegisterBatch, in order, the Since that its entry has now, and for one
	// passed over any; nil when each has what the batch lets expect: Revision with Adopt, otherwise its own.
	Since []Revision
}

// SinceOf gives the Since that the entry of a batch's put has now, which is the i-th, and was not passed over.
func (r *Result) SinceOf(i int, put Entry) Revision {
	switch {
	case i < len(r.Since):
		return r.Since[i]
	case put.Adopt:
		return r.Revision
	}
	return put.Since
}

// LockResult is where a claim stands after a command.
type LockResult struct {
	Key   string // LockKey of the claim
	Token Token  // 0 when a claim was not made
	// Granted says that the claim holds the lock.
	Granted bool
	// Position among those who wait, 1 is next; 0 when not waiting.
	Position int
	// Count of claims that the lease has; 0 when the last was given back.
	Count uint32
	// Predecessor is the key before this one in the queue, "" when there is none.
	Predecessor string
}

// Refusal returns the error of a Result: the parts that members keep and compare.
func Refusal(kind fault.Kind, field, message string) error {
	return &fault.Error{Op: "coord.Apply", Kind: kind, Field: field, Err: text(message)}
}

// text is an error that is nothing but its message.
type text string

func (t text) Error() string { return string(t) }
