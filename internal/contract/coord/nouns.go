package coord

// Revision counts the commands that changed the keyspace. Each such command makes the next revision,
// beginning above FirstRevision. In requests 0 means "the present" or "absent".
type Revision int64

// FirstRevision is the revision of a store without any change, as in etcd.
const FirstRevision Revision = 1

// Token is the fencing token of a claim: the create revision of its key. 0 means no token.
type Token int64

// LeaseID names a lease. Ids are positive and random; 0 means no lease or, in LeaseGrant, a free choice. The id
// of a lease of a caller without a name is its credential.
type LeaseID int64

// ClientID names a client whose commands are applied exactly once. 0 is no client.
type ClientID uint64

// KeyValue is one version of a key. State, history and readers share it: never change it or its
// Value.
type KeyValue struct {
	Key   string
	Value []byte
	// CreateRevision is the revision of the put that made the key. A put after a delete makes a new key.
	CreateRevision Revision
	// ModRevision is the revision of the put that made this version.
	ModRevision Revision
	// Version counts the puts since the key was made, from 1.
	Version int64
	// Lease whose end deletes the key; 0 is none.
	Lease LeaseID

	// Writer is the owner of the key's lease, or the one that put a key without a lease, whose quota the key counts for.
	// Empty for claims, for entries of the directory and for the group's own keys. Only peers know it.
	Writer string

	// LockClaim is the claim behind a lock's key; nil for other keys.
	LockClaim *Claim
	// Since is the revision that first committed the registration of a directory entry. Only the
	// present version carries it; 0 means unknown.
	Since Revision
	// Principal is that of a directory entry; see Entry. Only the present version carries it.
	Principal string
}

// Claim returns the claim behind a lock's key.
func (kv *KeyValue) Claim() (Claim, bool) {
	if kv == nil || kv.LockClaim == nil {
		return Claim{}, false
	}
	return *kv.LockClaim, true
}

// LeaseOwner returns the owner of the version's lease; empty without a lease and for entries of the directory.
func (kv *KeyValue) LeaseOwner() string {
	switch {
	case kv.Lease == 0:
		return ""
	case kv.LockClaim != nil:
		return kv.LockClaim.Holder
	}
	return kv.Writer
}

// Token returns the fencing token of a lock's key, 0 for other keys.
func (kv *KeyValue) Token() Token {
	if kv == nil || kv.LockClaim == nil {
		return 0
	}
	return Token(kv.CreateRevision)
}

// Event is one change of one key.
type Event struct {
	Revision Revision `json:"revision"`
	Key      string   `json:"key"`
	// KV is the new version; nil after a delete.
	KV *KeyValue `json:"kv,omitempty"`
	// Prev is the version before; nil for a new key.
	Prev *KeyValue `json:"prev_kv,omitempty"`
}

// Deletes reports whether the event deletes its key.
func (e Event) Deletes() bool { return e.KV == nil }

// Creates reports whether the event creates its key.
func (e Event) Creates() bool { return e.KV != nil && e.KV.Version == 1 }

// Span is the keys From <= key < To in byte order. An empty To means the end of the keyspace: the
// zero Span is the whole keyspace.
type Span struct{ From, To string }

// Exactly returns the span of one key.
func Exactly(key string) Span {
	end := key + "\x00"
	return Span{From: end[:len(key)], To: end}
}

// Under returns the span of keys with a prefix.
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

// Covers reports whether the span has all of another one.
func (s Span) Covers(o Span) bool {
	return s.From <= o.From && (s.To == "" || o.To != "" && o.To <= s.To)
}

// Meets reports whether the two have keys in common.
func (s Span) Meets(o Span) bool {
	return (s.To == "" || o.From < s.To) && (o.To == "" || s.From < o.To)
}

// Empty reports whether the span contains no key.
func (s Span) Empty() bool { return s.To != "" && s.To <= s.From }

// Bounds returns a span in the API's form: first key and end. The end "\x00" means the end of the
// keyspace, as in etcd. See SpanOf.
func (s Span) Bounds() (from, to []byte) {
	switch s.To {
	case "":
		s.To = "\x00"
	case "\x00":
		s = Span{From: "\x01", To: "\x01"} // no key
	}
	return []byte(s.From), []byte(s.To)
}

// SpanOf returns the span of Bounds. No key sorts before "\x00", so "\x00" can mean the end.
func SpanOf(from, to []byte) Span {
	if string(to) == "\x00" {
		return Span{From: string(from)}
	}
	return Span{From: string(from), To: string(to)}
}

// LockKey is the key of a lease's claim on a lock: name, "/", the tag of the lease.
func LockKey(name string, lease LeaseID) string { return name + "/" + lease.Tag() }

// Lease is a contract with the group: after silence of its owner for the time to live the leader
// ends it and deletes every bound key.
type Lease struct {
	ID    LeaseID `json:"id"`
	TTL   int64   `json:"granted_ttl_ms"`      // time to live, milliseconds
	Owner string  `json:"client_id,omitempty"` // its only user; see MayUse
	// Application is the name that its client gives itself, for people.
	Application string `json:"application,omitempty"`
	// Granted is the log index of its grant, which distinguishes it from an earlier lease with the
	// same id.
	Granted uint64 `json:"granted,omitempty"`
}

// Mode is the sharing mode of a claim. The numbers travel on the wire.
type Mode uint8

const (
	// Exclusive holds alone.
	Exclusive Mode = iota
	// Shared holds beside other shared claims: a reader.
	Shared
	// Permit holds beside other permits, up to the number in each claim: a semaphore.
	Permit
)

// Claim is a lease's place in the queue of a lock.
type Claim struct {
	Lock     string `json:"-"`
	Holder   string `json:"holder_id"` // the lease's owner
	Mode     Mode   `json:"mode"`
	Permits  uint32 `json:"permits,omitempty"` // of Permit
	Count    uint32 `json:"count"`             // open claims
	Metadata []byte `json:"metadata,omitempty"`
}
