package directory

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory/scout"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	listings = 4 // of a directory that is followed anew, while changes here make them old
	anyway   = 0 // is no revision
)

// numbered is the catalog's revision for one of the group: 1, and not 0, is that of the empty directory.
func numbered(r coord.Revision) uint64 { return uint64(r) + 1 }

// ownNumbers is where a numbering of a peer's own begins: above all revisions of any group, and another one for each
// process, so that a reader who comes with a revision of it elsewhere begins anew. Revisions stay below 2^53, which
// JSON's readers take for exact.
const ownNumbers = 1 << 52

// mirror feeds the catalog from the directory. While there is no contact with the group it feeds it
// from what changes here, in a numbering of its own, which ends with the next list.
type mirror struct {
	d *Directory

	mu       sync.Mutex // guards what follows, and orders what the catalog is fed
	own      map[instance.Key]published
	local    uint64 // the last revision of the numbering of its own
	revision uint64 // up to which the catalog has everything, its own or above
	follows  bool   // the watch lives
	foreign  bool   // revision is not the group's
	leads    bool
	moved    chan struct{} // closed when revision or contact changes
	relist   func()        // ends the watch, so that the directory is listed anew
}

// published is what runs here, and its form in the directory.
type published struct {
	*instance.Instance
	value []byte
}

func newMirror(d *Directory) *mirror {
	m := &mirror{
		d: d, own: make(map[instance.Key]published), local: ownNumbers | uint64(d.Random()*(1<<21))<<31,
		foreign: true, revision: 1, moved: make(chan struct{}), relist: func() {},
	}
	return m
}

// run follows the directory until Close.
func (m *mirror) run() {
	m.d.work.Go(m.heed)
	wait := least
	for m.d.ctx.Err() == nil {
		m.await(leading)
		began := time.Now()
		err := m.follow()
		m.lost(err)
		if time.Since(began) > most {
			wait = least
		}
		_, changed := m.d.lookout.state()
		select {
		case <-m.d.ctx.Done():
		case <-changed: // another leader, or one at last
			wait = least
		case <-time.After(wait/2 + time.Duration(m.d.Random()*float64(wait/2))):
			wait = min(2*wait, most)
		}
	}
}

// await waits until the lookout knows who leads, for a while at most: without, what is listed would have to be taken for old.
func (m *mirror) await(atMost time.Duration) {
	patience := time.NewTimer(atMost)
	defer patience.Stop()
	for {
		state, changed := m.d.lookout.state()
		if state.Phase == scout.Direct {
			return
		}
		select {
		case <-changed:
		case <-patience.C:
			return
		case <-m.d.ctx.Done():
			return
		}
	}
}

// heed marks answers as stale while no leader is known for longer than an election takes: what a
// minority knows may be old, however well it follows.
func (m *mirror) heed() {
	for {
		state, changed := m.d.lookout.state()
		direct := state.Phase == scout.Direct
		var patience <-chan time.Time
		if direct {
			m.led(true)
		} else {
			patience = time.After(leading)
		}
		select {
		case <-m.d.ctx.Done():
			return
		case <-changed:
		case <-patience:
			m.led(false)
			select {
			case <-m.d.ctx.Done():
				return
			case <-changed:
			}
		}
	}
}

func (m *mirror) led(leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leads != leads {
		m.leads = leads
		m.contact()
	}
}

// contact tells the catalog whether it can be trusted to be new. The caller holds mu.
func (m *mirror) contact() {
	switch {
	case m.follows && m.leads:
		m.d.Catalog.Thaw()
	case m.follows:
		m.d.Catalog.Freeze("the coordination group has no leader that this peer knows of", time.Now())
		m.show()
	default:
		m.d.Catalog.Freeze("no member of the coordination group answers", time.Now())
		m.show()
	}
	m.move()
}

// show shows what runs here as it is, where the directory does not have it so yet. The caller holds mu.
func (m *mirror) show() {
	var differ []catalog.Change
	for k, own := range m.own {
		if known, ok := m.d.Catalog.ByLease(own.Lease); !ok || !instance.Same(known, own.Instance) && known.Peer == m.d.Self {
			differ = append(differ, catalog.Change{Key: k, Instance: own.Instance})
		}
	}
	m.apart(differ)
}

// apart feeds the catalog in a numbering of its own, until the directory is listed anew. The caller holds mu.
func (m *mirror) apart(changes []catalog.Change) {
	if len(changes) == 0 {
		return
	}
	m.foreign, m.follows = true, false
	m.relist()
	m.local++
	m.revision = m.local
	for i, c := range changes {
		if c.Instance != nil {
			changes[i].Instance = revised(c.Instance, m.revision)
		}
	}
	if err := m.d.Catalog.Apply(m.revision, changes); err != nil {
		m.d.Failed("directory.apart", err)
	}
}

func (m *mirror) move() {
	close(m.moved)
	m.moved = make(chan struct{})
}

// lost takes note that the watch ended.
func (m *mirror) lost(err error) {
	if m.d.ctx.Err() == nil {
		m.d.Logger.Info("the directory is not followed", "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.follows, m.relist = false, func() {}
	m.contact()
}

// follow lists the directory, unless it can go on where it was, and watches it.
func (m *mirror) follow() error {
	ctx, cancel := context.WithCancel(m.d.ctx)
	defer cancel()
	dead := time.AfterFunc(silence, cancel)
	defer dead.Stop()
	from, err := m.resume(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.relist = cancel
	m.mu.Unlock()
	err = m.d.Group.Watch(ctx, coord.Watch{Span: coord.Under(coord.DirectoryPrefix), From: from}, func(b coord.Batch, _ coord.Header) error {
		dead.Reset(silence)
		return m.take(b)
	})
	var compacted *coord.Compacted
	if errors.As(err, &compacted) {
		m.mu.Lock()
		m.foreign = true // it cannot go on
		m.mu.Unlock()
	}
	return err
}

// resume gives the revision from which to watch.
func (m *mirror) resume(ctx context.Context) (coord.Revision, error) {
	m.mu.Lock()
	foreign, revision := m.foreign, m.revision
	m.mu.Unlock()
	if !foreign {
		return coord.Revision(revision), nil // the one after it, in the group's numbering
	}
	for tries := 1; ; tries++ {
		m.d.register.settle(ctx, most)
		m.mu.Lock()
		before := m.local
		m.mu.Unlock()
		if tries == listings {
			before = anyway
		}
		all, at, err := m.d.list(ctx, coord.Under(coord.DirectoryPrefix))
		if err != nil {
			return 0, err
		}
		if done, err := m.reset(all, at, before); done || err != nil {
			return coord.Revision(at), err
		}
	}
}

// reset makes the catalog what the directory has, unless something has changed here since before the directory
// was listed: then the list may lack what was shown already. Where something always changes it lacks that for a
// moment: its commit follows.
func (m *mirror) reset(all []*instance.Instance, at, before uint64) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before != anyway && m.local != before {
		return false, nil
	}
	if err := m.d.Catalog.Reset(at, all); err != nil {
		return false, fault.Wrap("directory.reset", err)
	}
	m.revision, m.foreign, m.follows = at, false, true
	m.contact()
	return true, nil
}

// take feeds the catalog with a batch, revision by revision.
func (m *mirror) take(b coord.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.foreign {
		return fault.New("directory.take", fault.Conflict, "the catalog has begun a numbering of its own")
	}
	if !m.follows {
		m.follows = true
		m.contact()
	}
	for len(b.Events) > 0 {
		n := 1
		for n < len(b.Events) && b.Events[n].Revision == b.Events[0].Revision {
			n++
		}
		if err := m.apply(b.Events[:n]); err != nil {
			return err
		}
		b.Events = b.Events[n:]
	}
	if done := numbered(b.Next - 1); done > m.revision { // what else the group does is not told: peers' catalogs agree on revisions
		m.revision = done
		m.move()
	}
	return nil
}

// apply feeds the catalog with the events of one revision.
func (m *mirror) apply(events []coord.Event) error {
	revision := numbered(events[0].Revision)
	if revision <= m.revision {
		return nil
	}
	changes := make([]catalog.Change, 0, len(events))
	for _, e := range events {
		k, ok := coord.InstanceKey(e.Key)
		if !ok {
			continue
		}
		changes = append(changes, catalog.Change{Key: k, Instance: m.of(k, e.KV)})
	}
	if err := m.d.Catalog.Apply(revision, changes); err != nil {
		return fault.Wrap("directory.apply", err)
	}
	m.revision = revision
	m.move()
	return nil
}

// of reads an entry. What the directory has just as it was published here is shared with what is here, and held
// once: most of an instance's memory is what applications say of it. The caller holds mu.
func (m *mirror) of(k instance.Key, kv *coord.KeyValue) *instance.Instance {
	if own, ok := m.own[k]; ok && kv != nil && bytes.Equal(kv.Value, own.value) {
		return revised(own.Instance, numbered(kv.ModRevision))
	}
	return m.d.decode(kv)
}

// decode reads an entry; nil for none, and for one that only a later version of this program understands.
func (d *Directory) decode(kv *coord.KeyValue) *instance.Instance {
	if kv == nil {
		return nil
	}
	i, err := instance.Unmarshal(kv.Value)
	if k, ok := coord.InstanceKey(kv.Key); err != nil || !ok || k != i.Key {
		d.Failed("directory.decode", err)
		return nil
	}
	i.Revision = numbered(kv.ModRevision)
	return i
}

// changed shows what changes here at once where the directory will not tell of it now: while there is no leader
// or no contact.
func (m *mirror) changed(changes []note) {
	state, _ := m.d.lookout.state()
	m.mu.Lock()
	defer m.mu.Unlock()
	apart := m.foreign || !m.follows || !m.leads || state.Phase != scout.Direct
	shown := make([]catalog.Change, 0, len(changes))
	for _, c := range changes {
		var own *instance.Instance
		if c.Instance == nil {
			delete(m.own, c.Key)
		} else {
			if own = c.Instance; own.Peer != m.d.Self {
				own = revised(own, 0)
				own.Peer = m.d.Self
			}
			m.own[c.Key] = published{own, c.value}
		}
		shown = append(shown, catalog.Change{Key: c.Key, Instance: own})
	}
	if apart {
		m.apart(shown)
		m.contact()
	}
}

// revised is an instance with another revision.
func revised(i *instance.Instance, revision uint64) *instance.Instance {
	c := *i
	c.Revision = revision
	return &c
}

// reach waits until the catalog has a revision of the directory, as long as it is followed.
func (m *mirror) reach(ctx context.Context, revision uint64) error {
	for {
		m.mu.Lock()
		done, moved := m.revision >= revision || !m.follows || m.foreign, m.moved
		m.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fault.Wrap("directory.reach", ctx.Err())
		}
	}
}

// Read gives what the directory surely has of a service, or with no service of a namespace, by key, and the
// revision of that answer. Errors: those of the group.
func (d *Directory) Read(ctx context.Context, n instance.Name) ([]*instance.Instance, uint64, error) {
	all, revision, err := d.list(ctx, coord.ServiceSpan(n))
	return all, revision, fault.Wrap("directory.Read", err)
}

// list reads a span at one revision, page by page.
func (d *Directory) list(ctx context.Context, span coord.Span) (all []*instance.Instance, revision uint64, err error) {
	q := coord.Query{Span: span, Limit: page}
	for {
		got, _, err := d.Group.Range(ctx, q, coord.Linearizable)
		if err != nil {
			return nil, 0, err
		}
		for _, kv := range got.Keys {
			if i := d.decode(kv); i != nil {
				all = append(all, i)
			}
		}
		q.At = got.Revision
		if got.Next == "" {
			return all, numbered(got.Revision), nil
		}
		q.Span.From = got.Next
	}
}
