package coord

import "github.com/blackhole/blackhole/pkg/fault"

// Result is the answer to one command.
type Result struct {
	// Revision of the keyspace after the command.
	Revision Revision
	// Err explains why the command changed nothing; nil after success. It is a *fault.Error with a
	// kind, mostly a field, and no value.
	Err error
	// Txn answers Txn.
	Txn TxnResult
	// Lock answers Lock, Unlock and Cancel.
	Lock LockResult
	// Lease and TTL, in milliseconds, answer LeaseGrant.
	Lease LeaseID
	TTL   int64
	// Client answers ClientOpen.
	Client ClientID
	// Changed counts keys put and deleted, including keys of ended leases, or the clients removed by
	// ClientsExpire.
	Changed int
	// Ended lists the leases that LeaseRevoke or Expire ended.
	Ended []LeaseID
	// Foreign lists the skipped puts of a RegisterBatch, in ascending order of keys. Another owner made
	// the latest decision about them.
	Foreign []string
	// Since has the present Since of each put of a RegisterBatch, in order, and any value for skipped
	// puts. It is nil if all match the batch: Revision with Adopt, otherwise the put's own Since.
	Since []Revision
}

// SinceOf returns the present Since of the i-th put of a batch, which was not skipped.
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
	Token Token  // 0 without a claim
	// Granted says that the claim holds the lock.
	Granted bool
	// Position in the queue, from 1; 0 for a holder.
	Position int
	// Count is the number of open claims of the lease; 0 after the last unlock.
	Count uint32
	// Predecessor is the key ahead in the queue, or "".
	Predecessor string
}

// Refusal returns the error of a Result: the parts that members keep and compare.
func Refusal(kind fault.Kind, field, message string) error {
	return &fault.Error{Op: "coord.Apply", Kind: kind, Field: field, Err: text(message)}
}

// text is an error with only a message.
type text string

func (t text) Error() string { return string(t) }
