package directory

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// ownRevision is the first revision of a peer's own numbering: above all
// revisions of a group and different for each process, so that a reader with a
// revision of it starts anew at any other peer. Revisions stay below 2^53, the
// exact integers of JSON readers.
func ownRevision(random float64) uint64 {
	return 1<<52 | uint64(random*(1<<21))<<31
}

// feeder feeds the catalog from the directory. Without contact to the group it
// feeds local changes under revisions of the peer's own numbering, until the
// next list of the directory.
type feeder struct {
	d *Directory

	mu       sync.Mutex // guards the fields below and orders calls of the catalog
	local    map[instance.Key]localInstance
	hidden   map[instance.Key]*instance.Instance // of other peers, whose places in the catalog local ones took since the last list
	own      uint64                              // last revision of the peer's own numbering
	revision uint64                              // last revision of the group in the catalog; while foreign, the catalog's own
	follows  bool                                // the watch delivers
	foreign  bool                                // the catalog cannot continue with the watch: list again
	refused  bool                                // the group refuses local entries
	mixed    bool                                // not foreign: the catalog has refused entries beside those of the directory, under the peer's own numbering
	led      bool                                // a leader is known, or was until recently
	warned   bool                                // the log says that the watch ended
	moved    chan struct{}
	relist   func() // ends the watch, so that the directory is listed again
}

// localInstance is a local instance with its value in the directory.
type localInstance struct {
	*instance.Instance
	value []byte
}

func newFeeder(d *Directory) *feeder {
	return &feeder{
		d: d, local: make(map[instance.Key]localInstance), hidden: make(map[instance.Key]*instance.Instance), own: ownRevision(d.Random()),
		foreign: true, revision: uint64(coord.FirstRevision), moved: make(chan struct{}), relist: func() {},
	}
}

// run follows the directory until Close.
func (f *feeder) run() {
	backOff := minBackOff
	for f.d.ctx.Err() == nil {
		f.awaitLeader(staleAfter)
		began := time.Now()
		err := f.follow()
		f.disconnect(err)
		if time.Since(began) > maxBackOff {
			backOff = minBackOff
		}
		_, changed := f.d.leader()
		select {
		case <-f.d.ctx.Done():
		case <-changed:
			backOff = minBackOff
		case <-time.After(backOff/2 + time.Duration(f.d.Random()*float64(backOff/2))):
			backOff = min(2*backOff, maxBackOff)
		}
	}
}

// awaitLeader waits for a leader: a list without one would count as stale.
func (f *feeder) awaitLeader(timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		term, changed := f.d.leader()
		if term != 0 {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-f.d.ctx.Done():
			return
		}
	}
}

// followLeader marks the catalog as stale after longer than an election without
// a leader. A watch in a minority still delivers, but its state may be old.
func (f *feeder) followLeader() {
	for f.d.ctx.Err() == nil {
		term, changed := f.d.leader()
		var stale <-chan time.Time
		if term != 0 {
			f.setLed(true)
		} else {
			stale = time.After(staleAfter)
		}
		select {
		case <-f.d.ctx.Done():
		case <-changed:
		case <-stale:
			f.setLed(false)
			select {
			case <-f.d.ctx.Done():
			case <-changed:
			}
		}
	}
}

func (f *feeder) setLed(led bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.led != led {
		f.led = led
		f.updateContact()
	}
}

// updateContact tells the catalog whether its state is current. The caller
// holds mu.
func (f *feeder) updateContact() {
	switch {
	case f.follows && f.led:
		f.d.Catalog.Thaw()
	case f.follows:
		f.d.Catalog.Freeze("the coordination group has no leader known to this peer", time.Now())
		f.applyOwn(f.unseen()) // not committed yet
	default:
		f.d.Catalog.Freeze("no member of the coordination group answers", time.Now())
		f.applyOwn(f.unseen()) // not committed yet
	}
	f.move()
}

// unseen returns the local instances that the catalog lacks in their last state. The caller holds mu.
func (f *feeder) unseen() (changes []instances.Change) {
	for k, i := range f.local {
		shown, ok := f.d.Catalog.ByLease(i.Lease)
		if !ok || !shown.Same(i.Instance) && shown.Peer == f.d.Self {
			changes = append(changes, instances.Change{Key: k, Instance: i.Instance})
		}
	}
	return changes
}

// applyOwn applies changes under the next revision of the peer's own numbering,
// which lasts until the next list of the directory. A local instance may take
// the place of another peer's, which comes back with the end of the local one:
// the group may never agree. The caller holds mu.
func (f *feeder) applyOwn(changes []instances.Change) {
	if len(changes) == 0 {
		return
	}
	for n, c := range changes {
		switch {
		case c.Instance == nil:
			changes[n].Instance = f.hidden[c.Key]
			delete(f.hidden, c.Key)
		case f.taken(c):
			f.hidden[c.Key] = f.d.Catalog.Get(c.Key)
		}
	}
	f.foreign, f.follows, f.mixed = true, false, false
	f.relist()
	f.applyMixed(changes)
	f.revision = f.own
}

// move wakes waiters for a revision or for a change of contact.
func (f *feeder) move() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// disconnect records the end of a watch. The log tells only the first of several
// failures in a row.
func (f *feeder) disconnect(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign, f.mixed = f.foreign || f.mixed, false
	if f.d.ctx.Err() == nil && !f.warned {
		f.warned = true
		f.d.Logger.Warn("the watch of the directory ended; answers are stale until the next one", "error", err)
	}
	f.follows, f.relist = false, func() {}
	f.updateContact()
}

// follow watches the directory, after a list of it unless the catalog can
// continue.
func (f *feeder) follow() error {
	ctx, cancel := context.WithCancel(f.d.ctx)
	defer cancel()
	dead := time.AfterFunc(watchTimeout, cancel)
	defer dead.Stop()
	from, err := f.resume(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.relist = cancel
	f.mu.Unlock()
	watch := &apiv1.WatchKeysRequest{Key: directory.BothPrefix, Prefix: true, StartRevision: from}
	err = f.d.Group.Watch(ctx, watch, func(r *apiv1.WatchKeysResponse) error {
		dead.Reset(watchTimeout)
		return f.take(r)
	})
	var compacted *coord.Compacted
	if errors.As(err, &compacted) {
		f.mu.Lock()
		f.foreign = true // the watch cannot continue here: list again
		f.mu.Unlock()
	}
	return err
}

// resume returns the revision for the next watch.
func (f *feeder) resume(ctx context.Context) (int64, error) {
	f.mu.Lock()
	foreign, revision := f.foreign, f.revision
	f.mu.Unlock()
	if !foreign {
		return int64(revision) + 1, nil
	}
	for tries := 1; ; tries++ {
		f.d.loop.settle(ctx, maxBackOff)
		f.mu.Lock()
		before := f.own
		f.mu.Unlock()
		all, at, err := f.d.list(ctx, coord.Under(directory.Prefix), coord.Under(directory.OutsidePrefix))
		if err != nil {
			return 0, err
		}
		if done, err := f.reset(all, at, before, tries == maxListings); done || err != nil {
			return int64(at) + 1, err
		}
	}
}

// reset replaces the catalog by a list of the directory, unless a local change
// came after own revision before: the list may lack a change already shown. A
// forced reset accepts that gap, which the commit of the change closes soon.
func (f *feeder) reset(all []*instance.Instance, at, before uint64, force bool) (done bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !force && f.own != before {
		return false, nil
	}
	f.mixed = f.refused
	shown := at
	if f.mixed {
		all, shown = f.withLocal(all), f.nextOwn()
	}
	if err := f.d.Catalog.Reset(shown, all); err != nil {
		return false, fault.Wrap("directory.reset", err)
	}
	f.revision, f.foreign, f.follows = at, false, true
	clear(f.hidden)
	f.updateContact()
	return true, nil
}

// nextOwn returns the next revision of the peer's own numbering. The caller holds mu.
func (f *feeder) nextOwn() uint64 {
	f.own++
	return f.own
}

// withLocal adds the local instances that a list of the directory lacks, and puts them in the place of its older states of
// them. The caller holds mu.
func (f *feeder) withLocal(all []*instance.Instance) []*instance.Instance {
	listed := make(map[instance.Key]bool, len(all))
	for n, i := range all {
		listed[i.Key] = true
		if l, ok := f.local[i.Key]; ok && i.Peer == f.d.Self {
			all[n] = l.Instance
		}
	}
	for k, l := range f.local {
		if !listed[k] {
			all = append(all, l.Instance)
		}
	}
	return all
}

// refuse shows the local entries that the group refuses beside those of the directory, until the group takes them. The catalog
// then differs from those of other peers, so its revisions are the peer's own.
func (f *feeder) refuse(refused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = refused
	switch {
	case !f.follows || f.foreign: // the next list of the directory decides
	case refused && !f.mixed:
		f.mixed = true
		f.applyMixed(slices.DeleteFunc(f.unseen(), f.taken))
	case !refused && f.mixed:
		f.foreign, f.mixed = true, false
		f.relist() // back to the numbering of the group
	}
}

// applyMixed applies changes under the peer's own numbering, while the watch goes on. The caller holds mu.
func (f *feeder) applyMixed(changes []instances.Change) {
	if len(changes) == 0 {
		return
	}
	revision := f.nextOwn()
	for n, c := range changes {
		if c.Instance != nil {
			changes[n].Instance = withRevision(c.Instance, revision)
		}
	}
	if err := f.d.Catalog.Apply(revision, changes); err != nil {
		f.d.Failed("directory.applyMixed", err)
	}
}

// shows reports whether the catalog shows refused entries.
func (f *feeder) shows() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mixed
}

// take feeds the catalog with the events of an answer, revision by revision.
func (f *feeder) take(r *apiv1.WatchKeysResponse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.foreign {
		return fault.New("directory.take", fault.Conflict, "the catalog left the numbering of the group")
	}
	if f.warned {
		f.warned = false
		f.d.Logger.Info("the watch of the directory delivers again")
	}
	if !f.follows {
		f.follows = true
		f.updateContact()
	}
	for events := r.GetEvents(); len(events) > 0; {
		n := 1
		for n < len(events) && events[n].GetKv().GetModRevision() == events[0].GetKv().GetModRevision() {
			n++
		}
		if err := f.apply(events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	// The catalog skips revisions of other keys: the catalogs of all peers agree
	// on revisions.
	if done := uint64(r.GetNextRevision() - 1); done > f.revision {
		f.revision = done
		f.move()
	}
	return nil
}

// apply feeds the catalog with the events of one revision.
func (f *feeder) apply(events []*apiv1.KeyEvent) error {
	revision := uint64(events[0].GetKv().GetModRevision())
	if revision <= f.revision {
		return nil
	}
	changes := make([]instances.Change, 0, len(events))
	for _, e := range events {
		if k, ok := instanceKey(string(e.GetKv().GetKey())); ok {
			c := instances.Change{Key: k}
			if e.GetType() == apiv1.KeyEvent_PUT {
				c.Instance = f.decode(k, e.GetKv())
			}
			changes = append(changes, c)
		}
	}
	if f.mixed {
		f.applyMixed(slices.DeleteFunc(changes, f.older))
	} else if err := f.d.Catalog.Apply(revision, changes); err != nil {
		return fault.Wrap("directory.apply", err)
	}
	f.revision = revision
	f.move()
	return nil
}

// older reports whether a change of the directory is an older state of a local instance: its end for want of a lease, or an
// earlier publication. The caller holds mu.
func (f *feeder) older(c instances.Change) bool {
	_, local := f.local[c.Key]
	return local && (c.Instance == nil || c.Instance.Peer == f.d.Self)
}

// taken reports whether the directory gives the name of a local change to another peer: such a change stays hidden. The caller holds mu.
func (f *feeder) taken(c instances.Change) bool {
	shown := f.d.Catalog.Get(c.Key)
	return shown != nil && shown.Peer != f.d.Self
}

// decode returns the instance of an entry. An entry equal to its local instance
// shares that instance's memory. The caller holds mu.
func (f *feeder) decode(k instance.Key, kv *apiv1.KeyVal) *instance.Instance {
	if i, ok := f.local[k]; ok && bytes.Equal(kv.GetValue(), i.value) {
		return withRevision(i.Instance, uint64(kv.GetModRevision()))
	}
	return f.d.decode(kv)
}

// change records local changes. Without a leader or contact the catalog shows
// them at once, because the directory cannot deliver them.
func (f *feeder) change(changes []encodedChange) {
	term, _ := f.d.leader()
	f.mu.Lock()
	defer f.mu.Unlock()
	shown := make([]instances.Change, 0, len(changes))
	for _, c := range changes {
		i := c.Instance
		if i == nil {
			delete(f.local, c.Key)
			if f.taken(c.Change) {
				continue // it ends nothing of another peer's
			}
		} else {
			if i.Peer != f.d.Self {
				i = withRevision(i, 0)
				i.Peer = f.d.Self
			}
			f.local[c.Key] = localInstance{i, c.value}
		}
		c.Instance = i
		shown = append(shown, c.Change)
	}
	switch {
	case f.foreign || !f.follows || !f.led || term == 0:
		f.applyOwn(shown)
		f.updateContact()
	case f.mixed:
		f.applyMixed(slices.DeleteFunc(shown, f.taken))
	}
}

// reach waits until the catalog has a revision of the directory, or follows it
// no more.
func (f *feeder) reach(ctx context.Context, revision uint64) error {
	for {
		f.mu.Lock()
		done, moved := f.revision >= revision || !f.follows || f.foreign, f.moved
		f.mu.Unlock()
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
