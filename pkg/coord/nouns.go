package coord

import "strconv"

// Revision counts the commands that changed the keyspace. The first makes revision 1; 0 is
// the empty keyspace before it and, in requests, "the present" or "absent".
type Revision int64

// Token is the fencing token of a claim on a lock: the create revision of its key. 0 is no token.
type Token int64

// LeaseID names a lease. Ids are positive; 0 is "no lease" or, in LeaseGrant, "choose one".
type LeaseID int64

// ClientID names a client whose commands are applied exactly once. 0 is no client.
type ClientID uint64

// KeyValue is one version of a key. It is shared between the state, its history and its
// readers: nobody changes it, the bytes of Value included.
type KeyValue struct {
	Key   string
	Value []byte
	// CreateRevision is that of the put that made the key; a key deleted and put again is a new one.
	CreateRevision Revision
	// ModRevision is that of the put that made this version.
	ModRevision Revision
	// Version counts the puts since the key was made, from 1.
	Version int64
	// Lease whose end deletes the key; 0 is none.
	Lease LeaseID

	// LockClaim is the claim that a lock's key stands for; nil for any other key.
	LockClaim *Claim
	// Since is the revision at which the registration of a directory entry was first committed.
	// Only the present version has it; 0 means unknown.
	Since Revision
}

// Claim gives the claim that the key stands for if it is a lock's key.
func (kv *KeyValue) Claim() (Claim, bool) {
	if kv == nil || kv.LockClaim == nil {
		return Claim{}, false
	}
	return *kv.LockClaim, true
}

// Token gives the fencing token of a lock's key, 0 for any other key.
func (kv *KeyValue) Token() Token {
	if kv == nil || kv.LockClaim == nil {
		return 0
	}
	return Token(kv.CreateRevision)
}

// Event is one change of one key.
type Event struct {
	Revision Revision
	Key      string
	// KV is the new version; nil when the key was deleted.
	KV *KeyValue
	// Prev is the version before; nil when there was none.
	Prev *KeyValue
}

// Deletes reports whether the event is the end of its key.
func (e Event) Deletes() bool { return e.KV == nil }

// Creates reports whether the event is the beginning of its key.
func (e Event) Creates() bool { return e.KV != nil && e.KV.Version == 1 }

// Span is the keys From <= key < To in the order of their bytes. An empty To is the end of
// the keyspace, so that the zero Span is all of it.
type Span struct{ From, To string }

// Exactly is the span of one key.
func Exactly(key string) Span { return Span{From: key, To: key + "\x00"} }

// Under is the span of all keys that begin with prefix.
func Under(prefix string) Span {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return Span{From: prefix, To: prefix[:i] + string([]byte{prefix[i] + 1})}
		}
	}
	return Span{From: prefix}
}

// Contains reports whether key lies in the span.
func (s Span) Contains(key string) bool { return s.From <= key && (s.To == "" || key < s.To) }

// Empty reports whether the span contains no key.
func (s Span) Empty() bool { return s.To != "" && s.To <= s.From }

// LockKey is the key of a lease's claim on a lock: name, "/", the lease in lower-case hex.
func LockKey(name string, lease LeaseID) string {
	var buf [80]byte
	key := append(append(buf[:0], name...), '/')
	return string(strconv.AppendInt(key, int64(lease), 16))
}

// Lease is a claim on the group's patience: when its owner has not been heard of for its time
// to live, the leader ends it, and every key bound to it goes.
type Lease struct {
	ID    LeaseID
	TTL   int64  // time to live, milliseconds
	Owner string // who alone may use it
	// Granted is the index of the entry that granted it, which tells it from an earlier
	// lease of the same id.
	Granted uint64
}

// Mode is how a claim shares its lock. The numbers cross the wire.
type Mode uint8

const (
	// Exclusive holds alone.
	Exclusive Mode = iota
	// Shared holds beside other shared claims: a reader.
	Shared
	// Permit holds beside other permits, as many as each says: a semaphore.
	Permit
)

// Claim is a lease's place in the queue of a lock.
type Claim struct {
	Lock     string
	Holder   string // owner of the lease
	Mode     Mode
	Permits  uint32 // of Permit
	Count    uint32 // times claimed and not given back
	Metadata []byte
}

// Query asks for keys.
type Query struct {
	Span Span
	// At is the revision to read; 0 is the present.
	At Revision
	// Limit on keys returned; 0 or less is none.
	Limit int
}

// Page answers a Query.
type Page struct {
	// Revision that was read: name it in At to read on in the same state.
	Revision Revision
	// Keys in ascending order.
	Keys []*KeyValue
	// Next is where the rest of the span begins; "" when nothing is left.
	Next string
}
