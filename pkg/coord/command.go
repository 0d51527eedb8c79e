package coord

// Command is the content of one entry of the group's log.
type Command struct {
	// Client and Sequence let the command be applied once however often it is proposed: a
	// retry repeats both. The next command of a client has a greater sequence and is proposed
	// when the result of the last is known. Zero Client: applied each time.
	Client   ClientID
	Sequence uint64
	// Owner is on whose behalf the command is, as authenticated by the member that accepted
	// it. What an owner made, a lease or a client, no other owner can use.
	Owner string
	// Op is what to do; not nil.
	Op Op
}

// Op is one of the operations of this package, or an Encoded: *Write, *Compact, *LeaseGrant, *LeaseRevoke,
// *Expire, *Lock, *Unlock, *Cancel, *RegisterBatch, *SetRequirement, *DeleteRequirement, *ClientOpen,
// *ClientClose, *ClientsExpire, *Configure, *BumpIncarnation.
type Op interface{ op() }

// Write changes keys, all at one revision or none, if every guard holds.
//
// Errors: Conflict when a guard does not hold or a change would touch a key of a lock, or of the
// directory; NotFound, Forbidden for a lease; Invalid, TooLarge, LimitReached.
type Write struct {
	If   []Guard
	Then []Change // at least one; no key twice
}

// Guard is a condition on the state before a write. Use IfRevision or IfHolds.
type Guard struct {
	key   string
	mod   Revision
	lock  string
	token Token
	held  bool // look at lock and token, otherwise at key and mod
}

// IfRevision holds while key was last changed at mod; with mod 0, while it is absent.
func IfRevision(key string, mod Revision) Guard { return Guard{key: key, mod: mod} }

// IfHolds holds while the claim with the token, above 0, holds the lock. A write guarded by an
// exclusive claim's token is refused once any later token has been granted.
func IfHolds(lock string, token Token) Guard { return Guard{lock: lock, token: token, held: true} }

// Held returns the lock and token of a guard made by IfHolds; false for other guards.
func (g Guard) Held() (lock string, token Token, ok bool) { return g.lock, g.token, g.held }

// Unchanged returns the key and revision of a guard made by IfRevision; false for other guards.
func (g Guard) Unchanged() (key string, mod Revision, ok bool) { return g.key, g.mod, !g.held }

// Change is a put or a deletion: exactly one field is set.
type Change struct {
	Put    *Put
	Delete *Span // every key in it; none is fine
}

// Put makes or replaces a key.
type Put struct {
	Key   string // not empty
	Value []byte // kept; the caller must not change it
	// Lease that the key is bound to from now on; 0 frees it of any.
	Lease LeaseID
}

// Compact forgets the events up to Revision, that one included: the earliest state that can
// be read is that of Revision. A revision already compacted changes nothing.
//
// Errors: Invalid for a revision that has not been.
type Compact struct{ Revision Revision }

// LeaseGrant makes a lease. The result has its id and the time to live granted, which is
// moved into the limits.
//
// Errors: Exists when the id is in use; Invalid, TooLarge, LimitReached.
type LeaseGrant struct {
	ID  LeaseID // 0: the lowest above those chosen so
	TTL int64   // time to live, milliseconds, above 0
}

// LeaseRevoke ends a lease at the wish of its owner.
//
// Errors: NotFound, Forbidden.
type LeaseRevoke struct{ ID LeaseID }

// Expire ends leases whose time has passed on the clock of the leader of Term. Leases that do
// not exist any more are passed over. When the keys to delete are more than the limit on
// changes the last ones stay; the result names those that ended.
//
// Errors: Conflict when the entry is of another term.
type Expire struct {
	Term   uint64
	Leases []LeaseRef // the first 512 are looked at
}

// LeaseRef is one grant of a lease: an id may be granted again after its lease ended.
type LeaseRef struct {
	ID      LeaseID
	Granted uint64 // index of the entry; see Lease
}

// Lock claims a lock for a lease. A lease that claims again what it claims already keeps its
// place and token, and must unlock once more.
//
// The result says whether the claim holds. With Wait it is in the queue if it does not, and
// Effects.Grants of some later command names it; without, nothing changed.
//
// Errors: NotFound, Forbidden for the lease; Conflict when the mode or permits are not those
// of the lease's claim, or the permits not those of the queue, or when the name is in a prefix of
// the directory; Exists when a plain key is in
// the place; Invalid, TooLarge, LimitReached.
type Lock struct {
	Name     string // valid UTF-8, not empty
	Lease    LeaseID
	Mode     Mode
	Permits  uint32 // with Permit how many may hold at once, above 0; otherwise 0
	Wait     bool
	Metadata []byte // for people and tools, kept; when claiming again, empty leaves the last
}

// Unlock gives back one claim of the lease that holds with the token.
//
// Errors: NotFound when there is no such claim; Conflict when it does not hold but wait;
// Forbidden for another owner's.
type Unlock struct {
	Name  string
	Lease LeaseID
	Token Token
}

// Cancel gives back one claim of the lease that waits with the token. If it holds by now,
// nothing changes and the result says Granted.
//
// Errors: NotFound when there is no such claim; Forbidden for another owner's.
type Cancel struct {
	Name  string
	Lease LeaseID
	Token Token
}

// ClientOpen makes a client; the result has its id.
//
// Errors: LimitReached.
type ClientOpen struct{}

// ClientClose forgets the command's client.
//
// Errors: Invalid when the command has none.
type ClientClose struct{}

// ClientsExpire forgets the clients whose last command, or opening, has an index below
// IdleSince. As with Expire, only the leader of Term may have measured how long that is.
//
// Errors: Conflict when the entry is of another term.
type ClientsExpire struct {
	Term      uint64
	IdleSince uint64
}

// Configure replaces the limits. What is above them stays, and nothing is added to it.
//
// Errors: Invalid.
type Configure struct{ Limits Limits }

// BumpIncarnation begins a new life of the group, restored from a state that may lack the last
// entries of its former one. The revision leaps ahead, by far more than can have been
// lost, so that no token and no revision is given twice, and all before is compacted.
//
// Errors: Conflict when Incarnation is not one more than the present.
type BumpIncarnation struct{ Incarnation uint64 }

func (*Write) op()             {}
func (*Compact) op()           {}
func (*LeaseGrant) op()        {}
func (*LeaseRevoke) op()       {}
func (*Expire) op()            {}
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
func (*BumpIncarnation) op()   {}
