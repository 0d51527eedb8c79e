package machine

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// RestoreFrom is Restore from a stream. It stops reading at the snapshot's end.
func (f Features) RestoreFrom(r io.Reader) (*Machine, error) {
	u, err := newUnframe(r, f.Levels)
	if err != nil {
		return nil, fault.Wrap("coord.Restore", err)
	}
	in := bufio.NewReader(u)
	d := &decoder{in: in}
	m := New()
	m.level = u.level
	d.machine(m)
	if d.err == nil {
		_, err := in.ReadByte()
		d.check(err == io.EOF, "snapshot", "has more than the state in it")
		if err != nil && err != io.EOF {
			d.err = cut(err)
		}
	}
	if d.err != nil {
		return nil, fault.Wrap("coord.Restore", d.err)
	}
	return m, nil
}

func (d *decoder) machine(m *Machine) {
	m.index, m.term, m.incarnation = d.uint(), d.uint(), d.uint()
	m.revision, m.compacted = coord.Revision(d.int()), coord.Revision(d.int())
	d.check(m.revision >= coord.FirstRevision, "revision", "is below that of an empty store")
	d.check(m.compacted <= m.revision, "compacted", "is in the future")
	d.check(m.revision <= highest, "revision", "leaves none to come")
	for more := d.count(); more(); {
		m.hidden = append(m.hidden, hidden{coord.Span{From: d.string(), To: d.string()}, coord.Revision(d.int())})
	}
	d.check(len(m.hidden) <= maxHidden, "hidden", "are too many ranges")
	d.limits(&m.limits.Limits)
	for more := d.count(); more(); {
		m.addresses = append(m.addresses, d.bytes())
	}
	d.leases(m)
	d.clients(m)
	d.publications(m)
	d.removals(m)
	d.keys(m)
	d.queues(m)
	d.events(m)
	d.merging(m)
}

func (d *decoder) limits(l *coord.Limits) {
	*l = coord.Limits{
		Keys: d.uint(), Bytes: d.uint(), KeyBytes: d.uint32(), ValueBytes: d.uint32(), OwnerBytes: d.uint32(), TxnBytes: d.uint32(),
		Changes: d.uint32(), Leases: d.uint32(), LeaseKeys: d.uint32(), MinTTL: d.int(), MaxTTL: d.int(),
		Queue: d.uint32(), Claims: d.uint32(), Clients: d.uint32(), HistoryEvents: d.uint32(), HistoryBytes: d.uint(), Reserved: d.uint32(),
		PerOwner: coord.Quota{
			Leases: d.uint32(), Claims: d.uint32(), Clients: d.uint32(), Bytes: d.uint(), UnleasedKeys: d.uint32(), UnleasedBytes: d.uint(),
		},
	}
	if err := l.Validate(); err != nil {
		d.fail(fault.In("limits", err))
	}
}

func (d *decoder) leases(m *Machine) {
	var last coord.LeaseID
	for more := d.count(); more(); {
		l := coord.Lease{ID: coord.LeaseID(d.int()), TTL: d.int(), Owner: d.string(), Application: d.string(), Granted: d.uint()}
		d.check(l.ID > last, "lease", "is out of order")
		d.check(l.TTL > 0 && l.Granted <= m.index, "lease", "was never granted so")
		m.leases.add(l, &m.owners)
		last = l.ID
	}
}

func (d *decoder) clients(m *Machine) {
	var last coord.ClientID
	var all []*client
	for more := d.count(); more(); {
		id := coord.ClientID(d.uint())
		c := &client{id: id, owner: d.string(), seen: d.uint(), sequence: d.uint()}
		if c.sequence != 0 {
			d.result(c)
		}
		d.check(id > last, "client", "is out of order")
		d.check(c.seen <= m.index, "client", "was seen in the future")
		all, last = append(all, c), id
	}
	slices.SortStableFunc(all, func(a, b *client) int { return cmp.Compare(a.seen, b.seen) })
	for _, c := range all {
		m.clients.add(c, &m.owners)
	}
}

// publications reads the generations of publishing owners. The entries follow with the keys.
func (d *decoder) publications(m *Machine) {
	last := ""
	for more, first := d.count(), true; more(); first = false {
		owner := d.string()
		p := &published{Publication: directory.Publication{Generation: d.uint()}, lease: coord.LeaseID(d.int())}
		a := m.owners.by[owner]
		d.check(first || owner > last, "owner", "is out of order")
		d.check(a != nil, "owner", "has nothing")
		l, lives := m.leases.Get(p.lease)
		d.check(p.Generation > 0 && lives && l.owner == a, "generation", "is not bound to a lease of its owner")
		if d.err == nil {
			a.published, last = p, owner
		}
	}
}

// result reads the result that a client keeps.
func (d *decoder) result(c *client) {
	c.revision = coord.Revision(d.int())
	if d.bool() {
		kind := d.uint()
		d.check(kind <= 255, "kind", "is too large")
		c.err = refusal(fault.Kind(kind), d.string(), d.string())
		return
	}
	c.answer = d.bytes()
	a, _, err := decodeAnswer(c.answer)
	d.check(err == nil && bytes.Equal(encodeAnswer(a), c.answer), "result", "is no answer, or not in its one form")
}

// removals reads what owners took out of the directory.
func (d *decoder) removals(m *Machine) {
	last := ""
	for more := d.count(); more(); {
		key, at, owner := d.string(), coord.Revision(d.int()), d.string()
		_, _, _, entry := directory.Names(key)
		d.check(entry && key > last, "removal", "is of no entry, or out of order")
		d.check(at > 0 && at <= m.revision, "removal", "is not in the past")
		d.check(m.removals.keys.Len() < MaxRemovalRecords, "removal", "is one too many")
		if d.err != nil {
			return
		}
		m.removals.add(key, removal{at, owner})
		last = key
	}
}

func (d *decoder) keys(m *Machine) {
	last := ""
	for more := d.count(); more(); {
		key := d.string()
		d.check(key > last, "key", "is out of order")
		kv := d.version(key)
		if d.err != nil {
			return
		}
		d.check(kv.ModRevision <= m.revision, "mod_revision", "is in the future")
		if isEntry(kv) {
			kv.Since = coord.Revision(d.int())
			kv.Principal = d.string()
			d.check(kv.Since <= m.revision, "since", "is in the future")
			d.check(kv.Principal == "" || principals.Valid(kv.Principal), "principal", "has no name")
			_, gone := m.removals.keys.Get(key)
			d.check(!gone, "removal", "is of an entry that is there")
		}
		if kv.Lease != 0 {
			l, ok := m.leases.Get(kv.Lease)
			d.check(ok && (isEntry(kv) || kv.LeaseOwner() == l.Owner), "lease", "of a key is not its owner's or does not exist")
		}
		bind(m, kv)
		m.tree.Load(key, kv)
		m.bytes += kvSize(kv)
		last = key
	}
}

// version reads a KeyValue.
func (d *decoder) version(key string) *coord.KeyValue {
	kv := &coord.KeyValue{
		Key: key, Value: d.bytes(), CreateRevision: coord.Revision(d.int()), ModRevision: coord.Revision(d.int()),
		Version: d.int(), Lease: coord.LeaseID(d.int()),
	}
	kv.Writer = d.string()
	d.check(kv.CreateRevision > 0 && kv.CreateRevision <= kv.ModRevision, "create_revision", "is not in the past")
	d.check(kv.Version > 0 && kv.Version <= int64(kv.ModRevision-kv.CreateRevision)+1, "version", "is not a count of revisions")
	if d.bool() && d.err == nil {
		kv.LockClaim = d.claim(kv)
	}
	return kv
}

// claim reads the claim out of the value of a lock's key.
func (d *decoder) claim(kv *coord.KeyValue) *coord.Claim {
	var entry coordv1.LockEntry
	if err := proto.Unmarshal(kv.Value, &entry); err != nil {
		d.fail(fault.As("", fault.Invalid, err))
		return nil
	}
	c := &coord.Claim{
		Holder: entry.GetHolder(), Mode: coord.Mode(entry.GetMode()), Permits: entry.GetPermits(),
		Count: entry.GetCount(), Metadata: entry.GetMetadata(),
	}
	if cut := len(kv.Key) - len(coord.LockKey("", kv.Lease)); cut > 0 {
		c.Lock = kv.Key[:cut]
	}
	d.check(coord.LockKey(c.Lock, kv.Lease) == kv.Key && c.Lock != "" && kv.Lease > 0, "key", "is no lock's")
	d.check(bytes.Equal(claimValue(c), kv.Value), "value", "is no claim, or not in its one form")
	d.check(c.Mode <= coord.Permit && c.Count > 0 && (c.Mode == coord.Permit) == (c.Permits > 0), "value", "is an impossible claim")
	return c
}

// queues derives the locks from the keys.
func (d *decoder) queues(m *Machine) {
	if d.err != nil {
		return
	}
	var names []string
	m.tree.Scan(func(_ string, kv *coord.KeyValue) bool {
		if kv.LockClaim == nil {
			return true
		}
		q := m.locks[kv.LockClaim.Lock]
		if q == nil {
			q = &queue{}
			m.locks[kv.LockClaim.Lock] = q
			names = append(names, kv.LockClaim.Lock)
		}
		q.push(kv)
		return true
	})
	for _, name := range names {
		q := m.locks[name]
		slices.SortFunc(q.claims, func(a, b *coord.KeyValue) int { return cmp.Compare(a.Token(), b.Token()) })
		for i, kv := range q.claims {
			d.check(i == 0 || q.claims[i-1].Token() < kv.Token(), "token", "is given twice")
			d.check(q.agrees(kv.LockClaim) == nil, "permits", "of one lock differ")
		}
		m.settle(name)
	}
}

func (d *decoder) events(m *Machine) {
	last := coord.Event{Revision: max(m.compacted, coord.FirstRevision)} // the first revision has no events
	for more := d.count(); more(); {
		e := coord.Event{Revision: coord.Revision(d.int()), Key: d.string()}
		e.KV, e.Prev = d.shown(m, e.Key), d.shown(m, e.Key)
		if d.err != nil {
			return
		}
		d.check(e.Revision > m.compacted, "event", "is of a revision that is compacted")
		next := e.Revision == last.Revision+1 || len(m.hidden) > 0 && e.Revision > last.Revision // hidden history has gaps
		d.check(next || e.Revision == last.Revision && e.Key > last.Key, "event", "is out of order")
		d.check(e.Key != "" && (e.KV != nil || e.Prev != nil), "event", "is about nothing")
		d.check(e.KV == nil || e.KV.ModRevision == e.Revision, "event", "did not make its version")
		d.check(e.Prev == nil || e.Prev.ModRevision < e.Revision, "event", "came before what it replaced")
		m.past.push(e)
		last = e
	}
	d.check(last.Revision == m.revision, "event", "of the last revision is missing")
}

// shown reads a version in an event.
func (d *decoder) shown(m *Machine, key string) *coord.KeyValue {
	switch form := d.uint(); form {
	case absent:
		return nil
	case present:
		kv, ok := m.tree.Get(key)
		d.check(ok, "event", "names a version that is not there")
		return kv
	case spelled:
		kv := d.version(key)
		now, ok := m.tree.Get(key)
		d.check(!ok || now.ModRevision != kv.ModRevision, "event", "spells a version that is there")
		return kv
	default:
		d.check(false, "event", "has a version in an unknown form")
		return nil
	}
}
