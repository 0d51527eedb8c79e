package coord

import (
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TxnDepth bounds the transactions within one another, the outermost not counted. MAGIC: more than people nest.
const TxnDepth = 16

// Limits bound the state and belong to it: members with different limits would compute different
// states. Change them by Configure.
type Limits struct {
	Keys          uint64 // keys at once, lock keys included
	Bytes         uint64 // keys and values at once, plus an overhead for each
	KeyBytes      uint32 // one key; a lock's name is at most 17 less
	ValueBytes    uint32 // one value; metadata of one lock has at most MaxMetadata, too
	OwnerBytes    uint32 // one owner name
	TxnBytes      uint32 // request of one transaction; also the keys and values that it reads
	Changes       uint32 // comparisons of a transaction, steps of all its branches, keys that it looks at; keys changed by one command
	Leases        uint32 // leases at once
	LeaseKeys     uint32 // keys bound to one lease, its claims included
	MinTTL        int64  // a lease's time to live, milliseconds
	MaxTTL        int64  // the same; at least MinTTL
	Queue         uint32 // holding and waiting claims on one lock
	Claims        uint32 // repeated claims of one lease on one lock
	Clients       uint32 // clients at once
	HistoryEvents uint32 // events kept; the last revision always stays
	HistoryBytes  uint64 // size of events kept, with both versions of each
	Reserved      uint32 // percent of Keys, Bytes, Leases and Clients for the peers themselves, and of Leases for applications; locks may use half of it in Keys and Bytes
	PerOwner      Quota  // of each owner
}

// Quota bounds one owner's share of the pools of the group. A command above it fails with PoolExhausted, and its pool has more for others;
// see fault.PoolOf. For a client above it the idlest one of the owner is forgotten. A key without a lease counts for the owner that put it last.
type Quota struct {
	Leases  uint32 // leases at once
	Claims  uint32 // claims on locks, holding or waiting
	Clients uint32 // clients at once
	Bytes   uint64 // keys and values bound to its leases, claims included, as Limits.Bytes counts

	UnleasedKeys  uint32 // keys without a lease that it put last
	UnleasedBytes uint64 // those keys and their values, as Limits.Bytes counts
}

// Kept returns the Reserved part of a total, rounded down.
func (l *Limits) Kept(total uint64) uint64 {
	return total/100*uint64(l.Reserved) + total%100*uint64(l.Reserved)/100
}

// MaxNames bounds the locks that one request claims together.
const MaxNames = 64

// Bounds in bytes.
const (
	MaxValue    = 1 << 20  // of one value, with the default limits
	MaxMetadata = 64 << 10 // of one lock's metadata: every waiting claim has its own
)

// DefaultLimits returns the limits of a new machine. They are part of the log's format: members of
// every version apply the first entries under them. Never change them; propose a Configure.
func DefaultLimits() Limits {
	return Limits{
		Keys: 1 << 20, Bytes: 1 << 30, KeyBytes: 1024, ValueBytes: MaxValue, OwnerBytes: 256, TxnBytes: 4 << 20,
		Changes: 10_000, Leases: 100_000, LeaseKeys: 10_000, MinTTL: 2_000, MaxTTL: 24 * 3600 * 1000,
		Queue: 4096, Claims: 1 << 16, Clients: 100_000, HistoryEvents: 1 << 16, HistoryBytes: 64 << 20, Reserved: 25,
		PerOwner: Quota{
			Leases: 10_000, Claims: 20_000, Clients: 20_000, Bytes: 64 << 20,
			UnleasedKeys: 1 << 18, UnleasedBytes: 256 << 20,
		},
	}
}

// Validate refuses limits that block every command. Errors: Invalid.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name  string
		value uint64
		min   uint64
	}{
		{"keys", l.Keys, 1}, {"bytes", l.Bytes, 1}, {"key_bytes", uint64(l.KeyBytes), 32},
		{"value_bytes", uint64(l.ValueBytes), 1}, {"owner_bytes", uint64(l.OwnerBytes), 1},
		{"changes", uint64(l.Changes), 1}, {"txn_bytes", uint64(l.TxnBytes), 1}, {"leases", uint64(l.Leases), 1},
		{"lease_keys", uint64(l.LeaseKeys), 1}, {"queue", uint64(l.Queue), 1},
		{"claims", uint64(l.Claims), 1}, {"clients", uint64(l.Clients), 1},
		{"history_events", uint64(l.HistoryEvents), 1}, {"history_bytes", l.HistoryBytes, 1},
		{"per_owner.leases", uint64(l.PerOwner.Leases), 1}, {"per_owner.claims", uint64(l.PerOwner.Claims), 1},
		{"per_owner.clients", uint64(l.PerOwner.Clients), 1}, {"per_owner.bytes", l.PerOwner.Bytes, 1},
		{"per_owner.unleased_keys", uint64(l.PerOwner.UnleasedKeys), 1}, {"per_owner.unleased_bytes", l.PerOwner.UnleasedBytes, 1},
	} {
		if f.value < f.min {
			return fault.Invalidf(f.name, f.value, "must be at least %d", f.min)
		}
	}
	if l.Reserved > 90 {
		return fault.Invalidf("reserved_percent", l.Reserved, "must be at most 90")
	}
	if l.MinTTL < 1 {
		return fault.Invalidf("min_ttl_ms", l.MinTTL, "must be at least 1")
	}
	if l.MaxTTL < l.MinTTL {
		return fault.Invalidf("max_ttl_ms", l.MaxTTL, "must be at least min_ttl_ms, %d", l.MinTTL)
	}
	return nil
}

// Message returns the limits as the log has them.
func (l Limits) Message() *coordv1.Limits {
	return &coordv1.Limits{
		Keys: l.Keys, Bytes: l.Bytes, KeyBytes: l.KeyBytes, ValueBytes: l.ValueBytes, OwnerBytes: l.OwnerBytes, TxnBytes: l.TxnBytes,
		Changes: l.Changes, Leases: l.Leases, LeaseKeys: l.LeaseKeys, MinTtlMs: l.MinTTL, MaxTtlMs: l.MaxTTL,
		Queue: l.Queue, Claims: l.Claims, Clients: l.Clients, HistoryEvents: l.HistoryEvents, HistoryBytes: l.HistoryBytes,
		ReservedPercent: l.Reserved,
		PerOwner: &coordv1.Quota{
			Leases: l.PerOwner.Leases, Claims: l.PerOwner.Claims, Clients: l.PerOwner.Clients, Bytes: l.PerOwner.Bytes,
			UnleasedKeys: l.PerOwner.UnleasedKeys, UnleasedBytes: l.PerOwner.UnleasedBytes,
		},
	}
}

// LimitsOf returns the limits of a message.
func LimitsOf(p *coordv1.Limits) Limits {
	owner := p.GetPerOwner()
	return Limits{
		Keys: p.GetKeys(), Bytes: p.GetBytes(), KeyBytes: p.GetKeyBytes(), ValueBytes: p.GetValueBytes(), OwnerBytes: p.GetOwnerBytes(), TxnBytes: p.GetTxnBytes(),
		Changes: p.GetChanges(), Leases: p.GetLeases(), LeaseKeys: p.GetLeaseKeys(), MinTTL: p.GetMinTtlMs(), MaxTTL: p.GetMaxTtlMs(),
		Queue: p.GetQueue(), Claims: p.GetClaims(), Clients: p.GetClients(), HistoryEvents: p.GetHistoryEvents(), HistoryBytes: p.GetHistoryBytes(),
		Reserved: p.GetReservedPercent(),
		PerOwner: Quota{
			Leases: owner.GetLeases(), Claims: owner.GetClaims(), Clients: owner.GetClients(), Bytes: owner.GetBytes(),
			UnleasedKeys: owner.GetUnleasedKeys(), UnleasedBytes: owner.GetUnleasedBytes(),
		},
	}
}
