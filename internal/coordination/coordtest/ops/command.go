package ops

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
)

// Command is one entry of the group's log.
type Command struct {
	// Client and Sequence make the group apply the command once, even if the log has it several
	// times: a retry repeats both. A client sends its next command, with a greater sequence, after
	// the result of the last. A zero Client applies the command each time.
	Client   coord.ClientID
	Sequence uint64
	// Owner names the principal behind the command, authenticated by the accepting peer. Only the owner of a
	// lease can use it; see MayUse. The random id of a client is its credential.
	Owner string
	// Random is the leader's choice of the id that the command makes.
	Random uint64
	// Op is the operation; not nil.
	Op Op
}

// Op is one of the operations of this package: *Txn, *Compact, *LeaseGrant, *LeaseRevoke,
// *Lock, *Unlock, *RegisterBatch, *SetRequirement, *DeleteRequirement, *ClientOpen,
// *ClientClose, *ClientsExpire, *Configure.
type Op interface{ op() }

// Compact drops the events up to and including Revision. Revision becomes the earliest readable
// state. A revision compacted before changes nothing.
//
// Errors: Invalid for a future revision.
type Compact struct{ Revision coord.Revision }

// LeaseGrant makes a lease. The result carries its id and the granted time to live, moved into
// the limits.
//
// Errors: Exists for a used id; Invalid, TooLarge, LimitReached.
type LeaseGrant struct {
	ID          coord.LeaseID // 0 lets the group choose a random one
	TTL         int64         // time to live, milliseconds, above 0
	Application string        // UTF-8; see Lease
}

// LeaseRevoke ends a lease at the wish of its owner.
//
// Errors: NotFound, Forbidden.
type LeaseRevoke struct{ ID coord.LeaseID }

// Lock claims a lock for a lease. A lease with a claim on the lock keeps its place and token, and
// must unlock once more.
//
// The result says whether the claim holds. Otherwise, with Wait, the claim joins the queue and the
// effects of a later command grant it; without Wait nothing changes.
//
// Errors: NotFound, Forbidden for the lease; Conflict for a mode or permits different from the
// lease's claim, permits different from the queue's, or a name in a prefix of the directory;
// Invalid, TooLarge, LimitReached.
type Lock struct {
	Name     string // UTF-8, not empty
	Lease    coord.LeaseID
	Mode     coord.Mode
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
	Lease coord.LeaseID
	Token coord.Token
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
type Configure struct{ Limits coord.Limits }

func (*Compact) op()           {}
func (*LeaseGrant) op()        {}
func (*LeaseRevoke) op()       {}
func (*Lock) op()              {}
func (*Unlock) op()            {}
func (*RegisterBatch) op()     {}
func (*SetRequirement) op()    {}
func (*DeleteRequirement) op() {}
func (*ClientOpen) op()        {}
func (*ClientClose) op()       {}
func (*ClientsExpire) op()     {}
func (*Configure) op()         {}

// SetRequirement creates or replaces a requirement.
type SetRequirement struct{ Requirement requirements.Requirement }

// DeleteRequirement deletes a requirement.
type DeleteRequirement struct{ Name string }

// RegisterBatch changes the entries of an owner, a peer, at one revision. Each
// entry is bound to the lease and ends with it. A put of an equal value under
// the same lease makes no event.
//
// An owner publishes under one lease and in generations. The first batch of a
// generation binds it to the lease. Until the end of that lease the group
// rejects batches of older generations: a late command of an earlier process,
// or from before a resync, changes nothing. Entries of older generations stay
// until a put, a delete, a replaced span or the end of their lease.
//
// An entry belongs to the owner of its lease. An application may register with
// several owners in turn, and owners may leave and return in any order: the
// latest registration counts. A put with Adopt is a new registration. It moves
// the entry of another owner to the batch's lease in one event, which informs
// the former owner. A put without Adopt repeats a registration first committed
// at revision Since. It is skipped, and its key listed in Result.Foreign, after
// a later decision about the key:
//
//   - another owner has the entry from an equal or later registration; an earlier one gives way;
//   - another owner has the entry, with a Principal that is not the put's. This holds with Adopt too: the entry of an
//     authenticated caller stays with its owner until the owner removes it or its lease ends;
//   - another owner removed the entry at a later revision, as long as the group remembers it.
//
// A Since above the present revision belongs to a lost history and counts as 0.
// The Since of an entry only rises during its life, and no two owners share
// one, so owners never take an entry from each other repeatedly. Deletes of
// foreign and of unknown entries are skipped too. A moved entry therefore never
// blocks a peer's other entries.
//
// Errors: Conflict, field "generation" for an older one, field "lease" for a
// generation bound to another lease; NotFound, Forbidden for the lease;
// Invalid, TooLarge, LimitReached.
type RegisterBatch struct {
	Lease      coord.LeaseID
	Generation uint64 // above 0
	Puts       []directory.Entry
	Deletes    []string // keys
	// Replace, if not nil, declares the puts to be all entries of the owner in
	// the span: its other entries there end. Consecutive spans correct a
	// directory of any size batch by batch, without a gap for correct entries.
	Replace *coord.Span
}
