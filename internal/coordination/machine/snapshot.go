package machine

import (
	"cmp"
	"crypto/sha256"
	"io"
	"slices"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Image is a copy of the whole state, for writing beside Apply. It is safe for concurrent use.
type Image struct {
	Keyspace
	limits      coord.Limits
	index       uint64
	term        uint64
	incarnation uint64
	level       uint32
	addresses   [][]byte
	merging     merging
	leases      btree.Map[coord.LeaseID, *lease] // their keys are not used
	clients     []client
	published   []publishedImage
	gone        btree.Map[string, removal]
}

// publishedImage is the part of an owner's publication that its entries do not determine.
type publishedImage struct {
	owner      string
	generation uint64
	lease      coord.LeaseID
}

// Image copies the present state. Beyond View it copies each client's last result and each publishing
// owner's name.
func (m *Machine) Image() *Image {
	i := &Image{
		Keyspace: m.Keyspace.clone(), limits: m.limits.Limits, index: m.index, term: m.term, incarnation: m.incarnation, level: m.level, addresses: m.addresses, merging: m.merging,
		leases:  *m.leases.Map.Copy(),
		clients: make([]client, 0, len(m.clients.byID)), gone: *m.removals.keys.Copy(),
	}
	for _, c := range m.clients.byID {
		i.clients = append(i.clients, *c)
	}
	slices.SortFunc(i.clients, func(a, b client) int { return cmp.Compare(a.id, b.id) })
	for owner, a := range m.owners.by {
		if p := a.published; p != nil && p.lease != 0 {
			i.published = append(i.published, publishedImage{owner, p.Generation, p.lease})
		}
	}
	slices.SortFunc(i.published, func(a, b publishedImage) int { return cmp.Compare(a.owner, b.owner) })
	return i
}

// Index gives the index and the term of the last entry in the image.
func (i *Image) Index() (index, term uint64) { return i.index, i.term }

// WriteTo writes the snapshot in the format of the group's feature level: the same bytes for the same state, on every member. It fails only
// with w.
func (i *Image) WriteTo(w io.Writer) (int64, error) {
	f := newFrames(w, i.level)
	i.encode(f)
	err := f.Close()
	return f.written, err
}

// Hash returns the SHA-256 of the state: equal on members with the same applied entries.
func (i *Image) Hash() [sha256.Size]byte {
	h := sha256.New()
	_, _ = h.Write(snapshotHead(i.level)) // a hash never fails
	i.encode(h)
	return [sha256.Size]byte(h.Sum(nil))
}

func (i *Image) encode(w io.Writer) {
	e := &encoder{w: w}
	for _, v := range []uint64{i.index, i.term, i.incarnation} {
		e.uint(v)
	}
	e.int(int64(i.revision))
	e.int(int64(i.compacted))
	e.int(int64(len(i.hidden)))
	for _, h := range i.hidden {
		e.string(h.span.From)
		e.string(h.span.To)
		e.int(int64(h.before))
	}
	e.limits(&i.limits)
	e.int(int64(len(i.addresses)))
	for _, a := range i.addresses {
		e.bytes(a)
	}
	e.int(int64(i.leases.Len()))
	i.leases.Scan(func(_ coord.LeaseID, l *lease) bool {
		e.lease(&l.Lease)
		e.flush()
		return true
	})
	e.int(int64(len(i.clients)))
	for k := range i.clients {
		e.client(&i.clients[k])
		e.flush()
	}
	e.int(int64(len(i.published)))
	for _, p := range i.published {
		e.string(p.owner)
		e.uint(p.generation)
		e.int(int64(p.lease))
		e.flush()
	}
	e.int(int64(i.gone.Len()))
	i.gone.Scan(func(key string, d removal) bool {
		e.string(key)
		e.int(int64(d.at))
		e.string(d.owner)
		e.flush()
		return true
	})
	e.int(int64(i.tree.Len()))
	i.tree.Scan(func(_ string, kv *coord.KeyValue) bool {
		e.string(kv.Key)
		if e.version(kv); isEntry(kv) {
			e.int(int64(kv.Since))
			e.string(kv.Principal)
		}
		e.flush()
		return true
	})
	e.int(int64(i.past.n))
	for k := range i.past.n {
		i.event(e, i.past.at(k))
		e.flush()
	}
	e.merging(&i.merging)
	e.flush()
}

func (e *encoder) limits(l *coord.Limits) {
	for _, v := range []uint64{
		l.Keys, l.Bytes, uint64(l.KeyBytes), uint64(l.ValueBytes), uint64(l.OwnerBytes), uint64(l.TxnBytes), uint64(l.Changes),
		uint64(l.Leases), uint64(l.LeaseKeys), uint64(l.MinTTL), uint64(l.MaxTTL), uint64(l.Queue),
		uint64(l.Claims), uint64(l.Clients), uint64(l.HistoryEvents), l.HistoryBytes, uint64(l.Reserved),
		uint64(l.PerOwner.Leases), uint64(l.PerOwner.Claims), uint64(l.PerOwner.Clients), l.PerOwner.Bytes,
		uint64(l.PerOwner.UnleasedKeys), l.PerOwner.UnleasedBytes,
	} {
		e.uint(v)
	}
}

func (e *encoder) lease(l *coord.Lease) {
	e.int(int64(l.ID))
	e.int(l.TTL)
	e.string(l.Owner)
	e.string(l.Application)
	e.uint(l.Granted)
}

func (e *encoder) client(c *client) {
	e.uint(uint64(c.id))
	e.string(c.owner)
	e.uint(c.seen)
	if e.uint(c.sequence); c.sequence != 0 {
		e.result(c)
	}
}

// result writes the result that a client keeps.
func (e *encoder) result(c *client) {
	e.int(int64(c.revision))
	if e.bool(c.err != nil); c.err == nil {
		e.bytes(c.answer)
		return
	}
	e.uint(uint64(fault.KindOf(c.err)))
	e.string(fault.FieldOf(c.err))
	e.string(fault.Message(c.err))
}

// version writes a KeyValue without its key. A reader finds the claim in the value.
func (e *encoder) version(kv *coord.KeyValue) {
	e.bytes(kv.Value)
	e.int(int64(kv.CreateRevision))
	e.int(int64(kv.ModRevision))
	e.int(kv.Version)
	e.int(int64(kv.Lease))
	e.string(kv.Writer)
	e.bool(kv.LockClaim != nil)
}

// How a version stands in an event.
const (
	absent  = iota // there is none
	spelled        // it follows
	present        // the present version of the key
)

func (i *Image) event(e *encoder, ev *coord.Event) {
	e.int(int64(ev.Revision))
	e.string(ev.Key)
	for _, kv := range []*coord.KeyValue{ev.KV, ev.Prev} {
		if kv == nil {
			e.uint(absent)
		} else if now, ok := i.tree.Get(ev.Key); ok && now.ModRevision == kv.ModRevision {
			e.uint(present)
		} else {
			e.uint(spelled)
			e.version(kv)
		}
	}
}
