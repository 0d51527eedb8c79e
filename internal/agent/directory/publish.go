package directory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/agent/directory/scout"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Published is what runs here under a key; nil: nothing does any more.
type Published struct {
	Key      instance.Key
	Instance *instance.Instance
	Adopt    bool // take it over if it is another peer's
}

// note is a change with the form that the instance has in the directory.
type note struct {
	Published
	value []byte
}

// register registers what runs here, as its Publisher says.
type register struct {
	d    *Directory
	wake *time.Timer

	mu        sync.Mutex // guards what follows
	publisher *publisher.Publisher
	runs      map[string]coord.Entry // all that runs here
	said      map[string]time.Time   // when an application last spoke for a key that may be another peer's; not of what is known to be committed
	fates     map[string]error       // of what the group would not have as it is
	settled   chan struct{}          // closed when something was, or the leader changed
	closed    bool
}

func newRegister(d *Directory, p *publisher.Publisher) *register {
	r := &register{
		d: d, publisher: p, runs: make(map[string]coord.Entry), said: make(map[string]time.Time), fates: make(map[string]error), settled: make(chan struct{}),
	}
	r.wake = time.AfterFunc(time.Hour, func() { r.event(publisher.Woke{}) })
	return r
}

func (r *register) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake.Stop()
	close(r.settled)
}

// Publish notes changes of what runs here, in order. It does not block.
func (d *Directory) Publish(changes []Published) {
	notes := make([]note, len(changes))
	for n, c := range changes {
		notes[n].Published = c
		if c.Instance != nil {
			notes[n].value = encode(c.Instance, d.Self)
		}
	}
	d.register.local(notes)
	d.mirror.changed(notes)
}

func (r *register) local(changes []note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e publisher.Local
	for _, c := range changes {
		key := coord.DirectoryKey(c.Key)
		delete(r.fates, key)
		if c.Instance == nil {
			delete(r.runs, key)
			delete(r.said, key)
			e.Deletes = append(e.Deletes, key)
			continue
		}
		if last, ok := r.runs[key]; ok {
			key = last.Key // which the map holds
		}
		entry := coord.Entry{Key: key, Value: c.value}
		r.runs[key] = entry // to adopt is said once: later it may have been taken away again
		if entry.Adopt = c.Adopt; c.Adopt {
			r.said[key] = time.Now()
		}
		e.Puts = append(e.Puts, entry)
	}
	r.advance(e)
}

// encode is the form of an instance in the directory: without what each peer counts for itself.
func encode(i *instance.Instance, self string) []byte {
	kept := *i
	kept.Revision, kept.Peer = 0, self
	return instance.Marshal(&kept)
}

// led tells the publisher who leads now. Its caller holds the lookout's lock, under which nothing waits for
// the register's.
func (r *register) led() {
	r.d.work.Go(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		e := publisher.Leader{}
		if s, _ := r.d.lookout.state(); s.Phase == scout.Direct {
			e.Term = s.Term
		}
		r.advance(e)
	})
}

func (r *register) event(e publisher.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance(e)
}

// advance gives the publisher an event, and does what it says. The caller holds mu.
func (r *register) advance(e publisher.Event) {
	if r.closed {
		return
	}
	led := r.publisher.State().Leads
	step := r.publisher.Advance(r.d.since(), e)
	if step.Do != nil {
		r.d.work.Go(func() { r.event(r.do(step.Do)) })
	}
	if step.Wake > 0 {
		r.wake.Reset(max(step.Wake-r.d.since(), 0))
	}
	for key, err := range step.Refused {
		r.fates[key] = err
		r.d.Failed("directory.publish", err)
	}
	r.lose(step.Lost)
	if step.Settled || len(step.Refused)+len(step.Lost) > 0 || led != r.publisher.State().Leads {
		close(r.settled)
		r.settled = make(chan struct{})
	}
}

// lose notes entries of which another peer had the last word, and tells of them.
func (r *register) lose(keys []string) {
	var lost []instance.Key
	for _, key := range keys {
		r.fates[key] = fault.New("directory.Committed", fault.Conflict, "another peer has it, or removed it")
		if k, ok := coord.InstanceKey(key); ok {
			lost = append(lost, k)
		}
	}
	if len(lost) > 0 {
		r.d.work.Go(func() { r.d.Lost(lost) })
	}
}

// do carries an action out and gives the event that answers it.
func (r *register) do(a publisher.Action) publisher.Event {
	ctx, cancel := r.d.call()
	defer cancel()
	s, _ := r.d.lookout.state()
	switch a := a.(type) {
	case publisher.Grant:
		got, _, err := r.d.Group.Do(ctx, r.command(&coord.LeaseGrant{ID: a.Lease, TTL: a.TTL.Milliseconds()}))
		return publisher.Granted{Lease: got.Lease, TTL: time.Duration(got.TTL) * time.Millisecond, Err: r.failed("grant", s.Term, err)}
	case publisher.Renew:
		renewals, _, err := r.d.Group.KeepAlive(ctx, r.d.Self, []coord.LeaseID{a.Lease})
		if err != nil || len(renewals) != 1 {
			return publisher.Renewed{Err: r.failed("renew", s.Term, errors.Join(err, missing(len(renewals) != 1)))}
		}
		return publisher.Renewed{Renewal: renewals[0]}
	case publisher.Send:
		batch, err := r.yielding(ctx, a.Batch)
		if err != nil {
			return publisher.Sent{Err: r.failed("send", s.Term, err)}
		}
		got, _, err := r.d.Group.Do(ctx, r.command(batch))
		got.Since = since(batch, got)
		return publisher.Sent{Result: got, Err: r.failed("send", s.Term, err)}
	default: // publisher.Pull
		return publisher.Pulled{Entries: r.pull()}
	}
}

// yielding is a batch that takes no instance over from a peer at which its application registered later than
// here. That can only be when the word of the application waited, and so was never committed: who registers is answered
// before. There the clocks of the peers are all that tells; of what was committed the group knows.
func (r *register) yielding(ctx context.Context, b *coord.RegisterBatch) (*coord.RegisterBatch, error) {
	changed := *b
	changed.Puts = slices.Clone(b.Puts)
	for n, e := range changed.Puts {
		r.mu.Lock()
		said := r.said[e.Key]
		r.mu.Unlock()
		if !e.Adopt || time.Since(said) < waited {
			continue
		}
		got, _, err := r.d.Group.Range(ctx, coord.Query{Span: coord.Exactly(e.Key)}, coord.Linearizable)
		if err != nil {
			return nil, err
		}
		for _, kv := range got.Keys {
			if i := r.d.decode(kv); i != nil && i.Peer != r.d.Self && i.RegisteredAt.After(said) {
				changed.Puts[n].Adopt = false
			}
		}
	}
	return &changed, nil
}

// since tells of every entry of a batch since when it is what it is: the batch may not have been sent as it was asked for.
func since(b *coord.RegisterBatch, got coord.Result) []coord.Revision {
	all := make([]coord.Revision, len(b.Puts))
	for n, e := range b.Puts {
		all[n] = got.SinceOf(n, e)
	}
	return all
}

// settle waits until the directory has all that runs here, or will not have it, or no leader is known, but no
// longer than some time.
func (r *register) settle(ctx context.Context, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		r.mu.Lock()
		s, settled := r.publisher.State(), r.settled
		done := !s.Leads || r.closed || s.Lease != 0 && !s.Anew && s.Waiting == 0 && r.had()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return
		}
	}
}

// had reports whether the directory has all that runs here, but for what it will not have. The caller holds mu.
func (r *register) had() bool {
	for key := range r.runs {
		if _, done := r.publisher.Committed(key); !done && r.fates[key] == nil {
			return false
		}
	}
	return true
}

func (r *register) command(op coord.Op) coord.Command { return coord.Command{Owner: r.d.Self, Op: op} }

// failed lets the lookout look again when the group did not answer in a leader's term.
func (r *register) failed(what string, term uint64, err error) error {
	if err == nil {
		return nil
	}
	r.d.Logger.Debug("a call to the group failed", "call", what, "error", err)
	if kind := fault.KindOf(err); kind == fault.Unavailable || kind == fault.Timeout {
		r.d.lookout.advance(scout.Doubt{Term: term})
	}
	return err
}

func missing(is bool) error {
	if is {
		return fault.New("directory.renew", fault.Internal, "the group answered for another lease")
	}
	return nil
}

// pull gives all that runs here.
func (r *register) pull() []coord.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := make([]coord.Entry, 0, len(r.runs))
	for _, e := range r.runs {
		entries = append(entries, e)
	}
	return entries
}

// Committed waits until the directory has what was last published under a key, and this peer's catalog too,
// and gives the revision. Errors: Unavailable at once while no leader is known; Conflict when another peer had
// the last word on the key; what the group says of an instance that it will not have; Timeout, Canceled.
func (d *Directory) Committed(ctx context.Context, k instance.Key) (uint64, error) {
	const op = "directory.Committed"
	revision, err := d.register.committed(ctx, coord.DirectoryKey(k))
	if err == nil {
		err = d.mirror.reach(ctx, revision)
	}
	return revision, fault.Wrap(op, err)
}

func (r *register) committed(ctx context.Context, key string) (uint64, error) {
	for {
		r.mu.Lock()
		revision, done := r.publisher.Committed(key)
		fate, leads, settled, closed := r.fates[key], r.publisher.State().Leads, r.settled, r.closed
		if done {
			delete(r.said, key)
		}
		r.mu.Unlock()
		switch {
		case closed:
			return 0, errClosed("directory")
		case fate != nil:
			return 0, fate
		case done:
			return numbered(revision), nil
		case !leads:
			return 0, fault.New("directory", fault.Unavailable, "no leader of the group is known")
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return 0, fault.Wrap("directory", ctx.Err())
		}
	}
}
