package ops

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Txn compares keys, and then reads and changes keys, all at one revision. It executes Then if every
// comparison holds, otherwise Else. The result says which in TxnResult.Succeeded: a comparison that
// does not hold is no error (see TxnResult.Unmet). An error changes nothing, and refuses a
// malformed step of the other branch too.
//
// In one branch each key is put at most once, and is not deleted as well.
//
// Errors: Conflict for a key of a lock or of the directory; NotFound, Forbidden for a lease; NotFound
// for a compacted revision; Invalid, TooLarge, LimitReached.
type Txn struct {
	If   []Compare
	Then []Step
	Else []Step
}

// Target is the property of a key that a comparison looks at. The numbers travel on the wire.
type Target uint8

const (
	// ModRevision compares the revision of the last put.
	ModRevision Target = iota
	// CreateRevision compares the revision of the first put.
	CreateRevision
	// Version compares the number of puts.
	Version
	// Value compares the bytes of the value.
	Value
	// LeaseOf compares the lease. Less and Greater go only with 0: an order of ids would reveal the id
	// of a lease, which can be a credential.
	LeaseOf
	// Holds looks at a claim instead of keys, and goes only with Equal.
	Holds
)

// String implements fmt.Stringer.
func (t Target) String() string {
	return nameOf(uint8(t), "mod_revision", "create_revision", "version", "value", "lease", "fencing_token")
}

// nameOf returns the name of a number.
func nameOf(n uint8, names ...string) string {
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprintf("unknown %d", n)
}

// Operator is the relation between a key's property, on the left, and the operand. The numbers travel
// on the wire.
type Operator uint8

const (
	// Equal is =.
	Equal Operator = iota
	// NotEqual is !=.
	NotEqual
	// Less is <.
	Less
	// Greater is >.
	Greater
)

// String implements fmt.Stringer.
func (o Operator) String() string { return nameOf(uint8(o), "=", "!=", "<", ">") }

// Compare is a condition on the state before a transaction: every key in Span has the property. An absent
// key, or an empty Span, has the numbers 0 and no value: it fails every comparison of a Value.
type Compare struct {
	Span     coord.Span
	Target   Target
	Operator Operator
	Number   int64       // the operand: a revision, a version or a lease
	Value    string      // the operand of Value
	Lock     string      // of Holds
	Token    coord.Token // of Holds
}

// IfRevision holds while key was last changed at mod; with mod 0, while it is absent.
func IfRevision(key string, mod coord.Revision) Compare {
	return Compare{Span: coord.Exactly(key), Number: int64(mod)}
}

// IfHolds holds while the claim with the token, above 0, holds the lock. After a later token has
// been granted, the comparison with an exclusive claim's token fails.
func IfHolds(lock string, token coord.Token) Compare {
	return Compare{Target: Holds, Lock: lock, Token: token}
}

// Step is one step of a transaction: exactly one of Put, Delete, Read and Txn is set. It sees the effects of
// the steps before it.
type Step struct {
	Put    *Put
	Delete *coord.Span // all keys in it; an empty span is fine
	Read   *Read
	Txn    *Txn // within: its comparisons look at the state before the whole transaction
	Prev   bool // with Put and Delete: return the versions before
}

// Check refuses a step that is not exactly one of Put, Delete, Read and Txn, or one of the last two with Prev.
func (s *Step) Check() error {
	kinds := 0
	for _, set := range []bool{s.Put != nil, s.Delete != nil, s.Read != nil, s.Txn != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fault.Invalidf("", kinds, "needs exactly one of a put, a deletion, a read and a transaction")
	case s.Put == nil && s.Delete == nil && s.Prev:
		return fault.Invalidf("", nil, "has no version before: prev goes with a put or a deletion")
	}
	return nil
}

// Put makes or replaces a key.
type Put struct {
	Key   string // not empty
	Value []byte // kept: the caller must not change it
	// Lease that the key is bound to from now on; 0 frees it of any.
	Lease coord.LeaseID
	// KeepValue and KeepLease leave the value or the lease of a key that must exist.
	KeepValue, KeepLease bool
}

// Read selects keys in a transaction. With At 0 it sees the steps before it.
type Read struct {
	Query
	// Bounds of the keys that count, inclusive; 0 is none.
	MinMod, MaxMod, MinCreate, MaxCreate coord.Revision
}

func (*Txn) op() {}

// Matches reports whether a version is within the bounds of revisions.
func (r *Read) Matches(kv *coord.KeyValue) bool {
	within := func(at, low, high coord.Revision) bool { return at >= low && (high == 0 || at <= high) }
	return within(kv.ModRevision, r.MinMod, r.MaxMod) && within(kv.CreateRevision, r.MinCreate, r.MaxCreate)
}
