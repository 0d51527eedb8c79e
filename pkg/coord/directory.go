package coord

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Prefixes of the keys that only the directory's commands write.
const (
	DirectoryPrefix    = "directory/"    // then namespace, service and id, parted by slashes
	RequirementsPrefix = "requirements/" // then the name
)

// Bounds of one RegisterBatch. They are part of the format of the log.
const (
	MaxBatch      = 1000      // puts and deletes
	MaxBatchBytes = 512 << 10 // keys and values
)

// RegisterBatch changes what an owner, a peer, has in the directory: all of it at one revision. Every
// entry is bound to the lease, and goes with it. A put that finds the same value under the same
// lease makes no event.
//
// An owner publishes under one lease and in generations. The first batch of a generation binds it to
// its lease; from then on until that lease ends batches of older ones are refused, so that a command
// sent by a process that is no more, or before the owner began anew, changes nothing however late it
// comes. What the older ones put stays until it is put again, deleted, replaced, or its lease ends.
//
// An entry belongs to the owner of its lease. An application may register with one owner and later with another,
// owners may be away and come back in any order, and the registration made last counts. So a put with Adopt,
// which is a new registration, moves an entry that another owner has to the batch's lease in one event, by which
// its former owner learns of it. One without repeats an earlier registration, first committed at the revision Since,
// and is passed over and its key listed in the result, Foreign, when there is a later word on the key:
//
//   - another owner has the entry, of a registration as late or later. One that is earlier gives way;
//   - another owner took it out of the directory at a later revision: see MaxDepartures.
//
// A Since above the present revision is of a history that the group has lost, and counts as 0. As an entry's Since only
// rises while it is there, and no two owners have the same, owners never take an entry from each other in
// turns. Deletes of another's entries, and of none, are passed over too. So one entry that moved does not keep a peer's
// others from being registered.
//
// Errors: Conflict, field "generation" for an older one, field "lease" when the generation is bound
// to another; NotFound, Forbidden for the lease; Invalid, TooLarge, LimitReached.
type RegisterBatch struct {
	Lease      LeaseID
	Generation uint64 // above 0
	Puts       []Entry
	Deletes    []string // keys
	// Replace, if not nil, says that the puts are all that the owner has in the span: its other
	// entries there go. Spans that follow each other so bring a directory of any size to what it
	// should be, batch by batch, and no entry that stays is ever missing.
	Replace *Span
}

// Entry is an instance in the directory.
type Entry struct {
	Key   string // DirectoryKey
	Value []byte // blackhole.agent.v1.Instance of the same names; kept: the caller must not change it
	// Adopt says that its application registered here now: take it over if it is another owner's.
	Adopt bool
	// Since is the revision at which that registration was first committed, by the result of a batch
	// with Adopt; 0 when it is not known. Without effect with Adopt.
	Since Revision
}

// DirectoryKey is the key of an instance's entry.
func DirectoryKey(k instance.Key) string { return DirectoryPrefix + k.String() }

// ServiceSpan is the span of a service's entries; without a service, of a namespace's; without either, of all.
func ServiceSpan(n instance.Name) Span {
	switch {
	case n.Namespace == "":
		return Under(DirectoryPrefix)
	case n.Service == "":
		return Under(DirectoryPrefix + n.Namespace + "/")
	}
	return Under(DirectoryPrefix + n.Namespace + "/" + n.Service + "/")
}

// InstanceKey takes the key of an entry apart; false if it is none.
func InstanceKey(key string) (instance.Key, bool) {
	rest, ok := strings.CutPrefix(key, DirectoryPrefix)
	namespace, rest, some := strings.Cut(rest, "/")
	service, id, more := strings.Cut(rest, "/")
	k := instance.Key{Namespace: namespace, Service: service, ID: id}
	return k, ok && some && more && label(namespace, 63) && label(service, 64) && identifier(id)
}

// Digest sums up entries, in whatever order they came: equal sets have equal digests, and different
// ones do but for bad luck. It is the additive multiset hash of Clarke, Devadas, van Dijk, Gassend and Suh,
// "Incremental Multiset Hash Functions and Their Application to Memory Integrity Checking"
// (ASIACRYPT 2003), of 128 bits: enough against accidents, not against an owner who wants to
// deceive itself. The zero Digest is that of no entries.
type Digest struct {
	Count     int
	High, Low uint64
}

// Add counts an entry in.
func (d *Digest) Add(key string, value []byte) {
	high, low := digestOf(key, value)
	d.Count, d.High, d.Low = d.Count+1, d.High+high, d.Low+low
}

// Remove counts out an entry that was counted in.
func (d *Digest) Remove(key string, value []byte) {
	high, low := digestOf(key, value)
	d.Count, d.High, d.Low = d.Count-1, d.High-high, d.Low-low
}

func digestOf(key string, value []byte) (high, low uint64) {
	var room [2048]byte
	b := binary.BigEndian.AppendUint32(room[:0], uint32(len(key)))
	sum := sha256.Sum256(append(append(b, key...), value...))
	return binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
}

// Publication is what an owner has in the directory.
type Publication struct {
	Generation uint64 // the present one
	Digest            // of its entries, under whatever lease
}

// published is what the state keeps of an owner's entries. But for the generation and its lease it is
// derived from them.
type published struct {
	Publication
	lease LeaseID // of the generation; 0 while there is none
	keys  btree.Set[string]
}

// Publication tells of the owner of a lease, if it is the one under which the owner publishes; otherwise nil.
func (m *Machine) Publication(id LeaseID) *Publication {
	l, ok := m.leases.Get(id)
	if !ok || l.owner.published == nil || l.owner.published.lease != id {
		return nil
	}
	p := l.owner.published.Publication
	return &p
}

// entry reports whether a version is one of an instance in the directory.
func isEntry(kv *KeyValue) bool {
	return kv.LockClaim == nil && strings.HasPrefix(kv.Key, DirectoryPrefix)
}

// withdraw ends the generation of a lease that ends.
func (l *lease) withdraw() {
	if p := l.owner.published; p != nil && p.lease == l.ID {
		p.Generation, p.lease = 0, 0
	}
}

func (a *account) publish() *published {
	if a.published == nil {
		a.published = new(published)
	}
	return a.published
}

func (o *registerBatchOp) run(m *Machine, c *call) error {
	if err := o.check(&m.limits); err != nil {
		return err
	}
	l, err := m.leaseOf(o.Lease, c.owner)
	if err != nil {
		return err
	}
	p := l.owner.publish()
	switch {
	case o.Generation < p.Generation:
		return fault.Refused(fault.Conflict, "generation", "%d is over, the present one is %d", o.Generation, p.Generation)
	case o.Generation == p.Generation && o.Lease != p.lease:
		return fault.Refused(fault.Conflict, "lease", "the generation is bound to another")
	}
	steps, foreign := m.reconcile(o, l)
	if err := m.feasible(steps, c.owner); err != nil {
		return err
	}
	if most := uint64(m.limits.Changes); uint64(len(steps)) > most {
		return limitReached("replace", "too many entries changed by one batch", most)
	}
	for _, s := range steps {
		if s.put == nil {
			m.remove(s.key)
			m.gone.add(s.key, departure{m.revision + 1, c.owner})
		} else {
			m.put(&KeyValue{Key: s.key, Value: s.put.Value, Lease: s.put.Lease})
			m.gone.forget(s.key)
		}
	}
	p.Generation, p.lease = o.Generation, o.Lease
	c.result.Changed, c.result.Foreign, c.result.Since = len(steps), foreign, m.stamp(o)
	return nil
}

// check looks at a batch by itself.
func (o *registerBatchOp) check(l *limits) error {
	switch n := len(o.Puts) + len(o.Deletes); {
	case o.Generation == 0:
		return fault.Invalidf("generation", nil, "must be above 0")
	case n == 0 && o.Replace == nil:
		return fault.Invalidf("puts", nil, "is missing")
	case n > MaxBatch:
		return limitReached("puts", "too many entries in one batch", MaxBatch)
	}
	size := 0
	seen := make(map[string]struct{}, len(o.Puts)+len(o.Deletes))
	for i := range o.Puts {
		e := &o.Puts[i]
		if err := checkEntry(e, l); err != nil {
			return fault.In(fmt.Sprintf("puts[%d]", i), err)
		}
		if o.Replace != nil && !o.Replace.Contains(e.Key) {
			return fault.Invalidf(fmt.Sprintf("puts[%d].key", i), nil, "is not in the span to replace")
		}
		seen[e.Key] = struct{}{}
		size += len(e.Key) + len(e.Value)
	}
	for i, key := range o.Deletes {
		if err := l.key(fmt.Sprintf("deletes[%d]", i), key); err != nil {
			return err
		}
		seen[key] = struct{}{}
		size += len(key)
	}
	switch {
	case len(seen) < len(o.Puts)+len(o.Deletes):
		return fault.Invalidf("puts", nil, "name a key twice, or one that is deleted")
	case size > MaxBatchBytes:
		return tooLarge("puts", size, MaxBatchBytes)
	}
	return nil
}

// reconcile gives the steps that make of what the owner of a lease has what the batch says, and the keys of
// the puts that are passed over.
func (m *Machine) reconcile(o *registerBatchOp, l *lease) (steps []step, foreign []string) {
	steps = make([]step, 0, len(o.Puts)+len(o.Deletes))
	named := make(map[string]struct{}, len(o.Puts))
	mine := &l.owner.published.keys
	for i := range o.Puts {
		e := &o.Puts[i]
		named[e.Key] = struct{}{}
		switch kv, ok := m.tree.Get(e.Key); {
		case !mine.Contains(e.Key) && m.outdated(e, kv, l.Owner):
			foreign = append(foreign, e.Key)
		case !ok || kv.Lease != o.Lease || !bytes.Equal(kv.Value, e.Value):
			steps = append(steps, step{e.Key, &Put{Key: e.Key, Value: e.Value, Lease: o.Lease}, i})
		}
	}
	slices.Sort(foreign)
	for _, key := range o.Deletes {
		named[key] = struct{}{}
		if mine.Contains(key) {
			steps = append(steps, step{key: key})
		}
	}
	if o.Replace == nil {
		return steps, foreign
	}
	mine.Ascend(o.Replace.From, func(key string) bool {
		if !o.Replace.Contains(key) {
			return false
		}
		if _, ok := named[key]; !ok {
			steps = append(steps, step{key: key})
		}
		return true
	})
	return steps, foreign
}
