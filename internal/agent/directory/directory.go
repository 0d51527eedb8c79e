// Package directory keeps the instances of this peer in the directory of the coordination group, and
// what the directory has of all peers in this peer's catalog.
//
// It is the part that acts of what packages scout and publisher compute: a lookout asks who leads
// the group, a publisher registers what runs here with the leader, a follower feeds the catalog from one
// watch of the directory. None of the three waits for another: what changes while no leader is known is
// published when one is, and what was known stays known, marked as stale.
//
// Whoever uses a Directory publishes everything that runs here before Start.
package directory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Times of a directory.
const (
	calling = 5 * time.Second        // for one call to the group
	silence = 25 * time.Second       // of a watch that is taken to be dead: two marks of progress and a half
	leading = 3 * time.Second        // without a leader until answers are stale: longer than an election
	least   = 250 * time.Millisecond // between two attempts
	most    = 5 * time.Second        // the same
	waited  = time.Second            // before it is sent: the word of an application that may not be the last one
	leased  = 15 * time.Second       // without a sign of life until a peer's instances are gone
	page    = 1000                   // entries of one answer
)

// Group is the coordination plane as a Directory uses it.
type Group interface {
	coord.Actor
	coord.Reader

	// Leading tells the highest term in which a leader is known, the leader's peer id, "" when none
	// is, and a channel that is closed when either changes.
	Leading() (term uint64, leader string, changed <-chan struct{})
	// Acquaintances are the peers that may know who leads.
	Acquaintances() []string
	// Who asks a peer who leads. Errors: Unavailable, Timeout, Canceled.
	Who(ctx context.Context, peer string) (term uint64, leader string, err error)
}

// Config is what a Directory is made of; Group, Catalog, Self, Lost and Random are required.
type Config struct {
	Group   Group
	Catalog *catalog.Catalog // which nobody else feeds
	Self    string           // id of this peer

	// Lost is told of instances published here of which another peer had the last word: it has them, or removed them.
	Lost func([]instance.Key)

	// Incarnation must be above that of any earlier process of this peer; 0: the seconds of the clock.
	Incarnation uint32
	Random      func() float64 // in [0, 1); nil: the runtime's
	Failed      func(op string, err error)
	Logger      *slog.Logger // nil: silence
}

// Directory is this peer's part in the directory. Its methods are safe for concurrent use.
type Directory struct {
	Config
	began time.Time

	lookout  *lookout
	register *register
	mirror   *mirror

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New makes a Directory that does nothing before Start but gather what is published.
func New(c Config) *Directory {
	if c.Incarnation == 0 {
		c.Incarnation = uint32(time.Now().Unix())
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Failed == nil {
		c.Failed = func(string, error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Directory{Config: c, began: time.Now()}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.lookout = newLookout(d)
	// A change goes at once, and what comes while it is under way goes together: to wait for more would only
	// make who registers wait.
	d.register = newRegister(d, publisher.New(publisher.Config{
		Lease: leaseOf(c.Self), TTL: leased, Incarnation: c.Incarnation, Gather: -1, Least: least, Most: most, Jitter: c.Random,
	}))
	d.mirror = newMirror(d)
	c.Catalog.Freeze("the directory of the group was not read yet", d.began)
	return d
}

// leaseOf is the lease under which a peer publishes, the same each time it starts: its instances stay over a restart.
func leaseOf(self string) coord.LeaseID {
	sum := sha256.Sum256([]byte("blackhole directory lease " + self))
	return coord.LeaseID(binary.BigEndian.Uint64(sum[:8])>>1 | 1)
}

// Start begins to look for a leader, to publish and to follow.
func (d *Directory) Start() {
	d.work.Go(d.lookout.run)
	d.work.Go(d.mirror.run)
}

// Close ends all that. What is published stays until the lease ends, which a restart forestalls.
func (d *Directory) Close() error {
	d.cancel()
	d.lookout.stop()
	d.register.stop()
	d.work.Wait()
	return nil
}

// since is the time of the state machines.
func (d *Directory) since() time.Duration { return time.Since(d.began) }

// call bounds a call to the group.
func (d *Directory) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.ctx, calling)
}

// errClosed is the error of who waits when the directory closes.
func errClosed(op string) error { return fault.New(op, fault.Unavailable, "the peer is shutting down") }
