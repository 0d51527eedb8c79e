// Package directory keeps the local instances in the directory of the
// coordination group, and feeds the catalog from the directory of all peers.
//
// A publisher loop writes the local instances while the group has a leader. A
// feeder copies the directory into the catalog from one watch. The two are
// independent: changes without a leader wait for the next leader, and the
// catalog keeps the last state, marked as stale.
//
// The owner of a Directory publishes all local instances before Start.
package directory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Times and sizes of a directory.
const (
	callTimeout  = 5 * time.Second        // one call to the group
	watchTimeout = 25 * time.Second       // silence of a watch: two and a half progress marks
	staleAfter   = 3 * time.Second        // without a leader, or without an answer of it: longer than an election
	warnEvery    = time.Minute            // between two warnings of refused entries
	minBackOff   = 250 * time.Millisecond // between two attempts
	maxBackOff   = 5 * time.Second        // between two attempts
	delayedAfter = time.Second            // age of a possibly outdated registration
	pageSize     = 1000                   // entries of one answer
	maxListings  = 4                      // attempts to list without a concurrent local change
)

// Group is the coordination plane as the directory uses it.
type Group interface {
	coord.Service
	// Leading returns the highest known term, its leader's peer id ("" if
	// unknown), and a channel closed at the next change of either.
	Leading() (term uint64, leader string, changed <-chan struct{})
}

// Config configures a Directory. Group, Catalog, Self and Lost are required.
type Config struct {
	Group   Group
	Catalog *catalog.Catalog // fed by the Directory alone
	Self    string           // id of this peer

	// Lost receives the keys published here that another peer has taken over
	// or removed since.
	Lost func([]instance.Key)

	// Refused hears why the group does not take entries of this peer although it has a leader, and nil as soon as it takes
	// them. The function must not block or call back. Nil hears nothing.
	Refused func(reason error)

	Random func() float64 // in [0, 1); nil means math/rand
	Failed func(op string, err error)
	Logger *slog.Logger  // nil means no log
	Tracer *trace.Tracer // nil means no spans
}

// Directory is this peer's part of the directory. It is safe for concurrent use.
type Directory struct {
	Config
	began  time.Time
	loop   *publishLoop
	feeder *feeder

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New returns a Directory that only collects changes until Start.
func New(c Config) *Directory {
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Failed == nil {
		c.Failed = func(string, error) {}
	}
	if c.Refused == nil {
		c.Refused = func(error) {}
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	d := &Directory{Config: c, began: time.Now()}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.loop = newPublishLoop(d, publisher.New(publisher.Config{Lease: leaseOf(c.Self), Incarnation: uint32(time.Now().Unix()), Jitter: c.Random}))
	d.feeder = newFeeder(d)
	c.Catalog.Freeze("this peer has not read the directory of the group yet", d.began)
	return d
}

// leaseOf derives a peer's lease id. A constant id lets entries survive a
// restart of the peer.
func leaseOf(self string) coord.LeaseID {
	sum := sha256.Sum256([]byte("blackhole directory lease " + self))
	return coord.LeaseID(binary.BigEndian.Uint64(sum[:8])>>1 | 1)
}

// Start begins to publish and to follow.
func (d *Directory) Start() {
	d.work.Go(d.loop.followLeader)
	d.work.Go(d.feeder.followLeader)
	d.work.Go(d.feeder.run)
}

// Close stops all work. Published entries stay until the lease ends; an earlier
// restart keeps them.
func (d *Directory) Close() {
	d.cancel()
	d.loop.stop()
	d.work.Wait()
}

// Publish queues changes of local instances in order. A change whose application
// registered here takes its key over from another peer. It does not block.
func (d *Directory) Publish(changes []instances.Change) {
	queued := make([]encodedChange, len(changes))
	for n, c := range changes {
		queued[n].Change = c
		if c.Instance != nil {
			queued[n].value = encode(c.Instance, d.Self)
		}
	}
	d.loop.change(queued)
	d.feeder.change(queued)
}

// Committed waits until the directory and this peer's catalog contain the last
// change of a key, and returns its revision. Errors: Unavailable, within two
// seconds, while no leader is known; Conflict after a takeover or removal by
// another peer; the group's reason for a rejected entry; Timeout, Canceled.
func (d *Directory) Committed(ctx context.Context, k instance.Key) (uint64, error) {
	const op = "directory.Committed"
	revision, err := d.loop.committed(ctx, directoryKey(k))
	if err == nil {
		err = d.feeder.reach(ctx, revision)
	}
	return revision, fault.Wrap(op, err)
}

// Uncommitted returns why the group does not have a local entry in its last state, or nil: it has, or will soon.
func (d *Directory) Uncommitted(k instance.Key) error { return d.loop.uncommitted(directoryKey(k)) }

// Pending returns the number of local entries that the group does not have in their last state.
func (d *Directory) Pending() int { return d.loop.pending() }

// Read returns the committed instances of a service by key, or of a namespace
// if the service is empty, and the revision of the answer. The read is
// linearizable. Errors: as the group; Unavailable while this peer shows entries that the group refuses.
func (d *Directory) Read(ctx context.Context, n instance.Name) ([]*instance.Instance, uint64, error) {
	if d.feeder.shows() {
		return nil, 0, fault.New("directory.Read", fault.Unavailable, "this peer shows instances of its own that the group refuses: ask another peer")
	}
	peers := directory.Span(n.Namespace, n.Service)
	all, revision, err := d.list(ctx, peers, coord.Under(directory.OutsidePrefix+strings.TrimPrefix(peers.From, directory.Prefix)))
	return all, revision, fault.Wrap("directory.Read", err)
}

// list reads spans at one revision, page by page.
func (d *Directory) list(ctx context.Context, spans ...coord.Span) (all []*instance.Instance, revision uint64, err error) {
	for _, span := range spans {
		for q := span.Request(pageSize); ; {
			q.Revision = int64(revision)
			got, err := coord.Range(ctx, d.Group, q)
			if err != nil {
				return nil, 0, err
			}
			for _, kv := range got.GetKvs() {
				if i := d.decode(kv); i != nil {
					all = append(all, i)
				}
			}
			revision = uint64(got.GetRevision())
			if q.From = got.GetNext(); len(q.From) == 0 {
				break
			}
		}
	}
	return all, revision, nil
}

// leader returns the term of the current leader, 0 if unknown, and a channel
// closed at the next change.
func (d *Directory) leader() (term uint64, changed <-chan struct{}) {
	term, leader, changed := d.Group.Leading()
	if leader == "" {
		return 0, changed
	}
	return term, changed
}

// elapsed is the clock of the publisher.
func (d *Directory) elapsed() time.Duration { return time.Since(d.began) }

// encodedChange is a change with the instance's value in the directory.
type encodedChange struct {
	instances.Change
	value []byte
}

// encode returns the value of an instance in the directory. Revisions differ
// between peers and stay out.
func encode(i *instance.Instance, self string) []byte {
	stored := *i
	stored.Revision, stored.Peer = 0, self
	return stored.Marshal()
}

// decode returns the instance of an entry, or nil for one only a later version of this program can read.
func (d *Directory) decode(kv *apiv1.KeyVal) *instance.Instance {
	i, err := instance.Unmarshal(kv.GetValue())
	if k, ok := instanceKey(string(kv.GetKey())); err != nil || !ok || k != i.Key {
		d.Failed("directory.decode", err)
		return nil
	}
	if i.Revision = uint64(kv.GetModRevision()); strings.HasPrefix(i.ID, directory.OutsideID) { // anybody may have written it
		i.Peer, i.Lease, i.Principal = directory.Outside, "", ""
	}
	return i
}

func directoryKey(k instance.Key) string { return directory.Key(k.Namespace, k.Service, k.ID) }

// instanceKey returns the instance of an entry's key, or false for another key. The two kinds of entries share no id.
func instanceKey(key string) (instance.Key, bool) {
	key, of := directory.Inside(key)
	namespace, service, id, ok := directory.Names(key)
	return instance.Key{Namespace: namespace, Service: service, ID: id}, ok && of
}

// withRevision returns a copy of an instance with another revision.
func withRevision(i *instance.Instance, revision uint64) *instance.Instance {
	c := *i
	c.Revision = revision
	return &c
}
