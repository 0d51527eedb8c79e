package coord

import "github.com/blackhole/blackhole/pkg/fault"

// Command is one entry of the group's log.
type Command struct {
	// Client and Sequence make the group apply the command once, even if the log has it several
	// times: a retry repeats both. A client sends its next command, with a greater sequence, after
	// the result of the last. A zero Client applies the command each time.
	Client   ClientID
	Sequence uint64
	// Owner names the principal behind the command, authenticated by the accepting peer. Only the owner of a
	// lease can use it; see MayUse. The random id of a client is its credential.
	Owner string
	// Random is the leader's choice of the id that the command makes.
	Random uint64
	// Op is the operation; not nil.
	Op Op
}

// Op is one of the operations of this package, or an Encoded: *Txn, *Compact, *LeaseGrant, *LeaseRevoke,
// *Lock, *Unlock, *Cancel, *RegisterBatch, *SetRequirement, *DeleteRequirement, *ClientOpen,
// *ClientClose, *ClientsExpire, *Configure, *SetLevel, *Dissolve, *RaiseRevision.
type Op interface{ op() }

// Compact drops the events up to and including Revision. Revision becomes the earliest readable
// state. A revision compacted before changes nothing.
//
// Errors: Invalid for a future revision.
type Compact struct{ Revision Revision }

// LeaseGrant makes a lease. The result carries its id and the granted time to live, moved into
// the limits.
//
// Errors: Exists for a used id; Invalid, TooLarge, LimitReached.
type LeaseGrant struct {
	ID          LeaseID // 0 lets the group choose a random one
	TTL         int64   // time to live, milliseconds, above 0
	Application string  // UTF-8; see Lease
}

// LeaseRevoke ends a lease at the wish of its owner.
//
// Errors: NotFound, Forbidden.
type LeaseRevoke struct{ ID LeaseID }

// Lock claims a lock for a lease. A lease with a claim on the lock keeps its place and token, and
// must unlock once more.
//
// The result says whether the claim holds. Otherwise, with Wait, the claim joins the queue and the
// effects of a later command grant it; without Wait nothing changes.
//
// Errors: NotFound, Forbidden for the lease; Conflict for a mode or permits different from the
// lease's claim, permits different from the queue's, or a name in a prefix of the directory;
// Exists for a plain key in the place of the claim; Invalid, TooLarge, LimitReached.
type Lock struct {
	Name     string // UTF-8, not empty
	Lease    LeaseID
	Mode     Mode
	Permits  uint32 // with Permit how many may hold at once, above 0; otherwise 0
	Wait     bool
	Metadata []byte // for people and tools; kept. In a repeated claim, empty leaves the last
}

// Unlock gives back one claim of the lease with the token, a holder.
//
// Errors: NotFound for an unknown claim; Conflict for a waiting claim; Forbidden for another
// owner's claim.
type Unlock struct {
	Name  string
	Lease LeaseID
	Token Token
}

// Cancel gives back one waiting claim of the lease with the token. A holding claim stays, and the
// result says Granted.
//
// Errors: NotFound for an unknown claim; Forbidden for another owner's claim.
type Cancel struct {
	Name  string
	Lease LeaseID
	Token Token
}

// ClientOpen makes a client. The result carries its id.
//
// Errors: LimitReached.
type ClientOpen struct{}

// ClientClose removes the command's client.
//
// Errors: Invalid without a client.
type ClientClose struct{}

// ClientsExpire removes clients whose last command or opening has a log index below IdleSince.
// The leader of Term measured the time.
//
// Errors: Conflict in an entry of another term.
type ClientsExpire struct {
	Term      uint64
	IdleSince uint64
}

// Configure replaces the limits. Existing state above them stays and cannot grow.
//
// Errors: Invalid.
type Configure struct{ Limits Limits }

func (*Compact) op()           {}
func (*LeaseGrant) op()        {}
func (*LeaseRevoke) op()       {}
func (*Lock) op()              {}
func (*Unlock) op()            {}
func (*Cancel) op()            {}
func (*RegisterBatch) op()     {}
func (*SetRequirement) op()    {}
func (*DeleteRequirement) op() {}
func (*ClientOpen) op()        {}
func (*ClientClose) op()       {}
func (*ClientsExpire) op()     {}
func (*Configure) op()         {}

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
