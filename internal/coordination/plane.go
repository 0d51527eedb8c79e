package coordination

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of what a peer has under way.
const (
	maxSlots   = 4096            // commands at a time, waiting ones included
	maxUndoing = 1024            // commands of callers with an identity of their own that are being undone
	patience   = 5 * time.Second // without a leader that answers
	attending  = time.Second     // between two questions who leads, while calls wait for an answer
	closing    = 3 * time.Second // to hand over the leadership
	cleaningUp = 5 * time.Second // to give back a claim whose caller is gone
)

// Remote is the contract at another peer, which passes nothing on.
type Remote interface {
	coord.Actor
	coord.Reader
	coord.Overseer
	io.Closer
}

// Config is what a Plane is made of.
type Config struct {
	Host    host.Host       // finds peers by their ids
	PubSub  *pubsub.PubSub  // on which the leader announces the group; nil: it does not
	Values  announce.Values // the DHT, in which it posts the group and others look for it; nil: not so
	Key     crypto.PrivKey
	Network bootstrap.Network
	Voters  int           // that the group begins with and keeps: 1, 3 or 5
	Replace time.Duration // silence after which a voter is replaced

	// Limits gives, for the limits that the group has, those it should have: what this peer proposes
	// when it leads. nil leaves them.
	Limits func(coord.Limits) coord.Limits

	// Dir holds what must survive; Marks is the directory of the identity key. See founding.Place.
	Dir, Marks string
	FS         vfs.FS // nil: the real one

	// Remote gives the contract at another peer, for calls meant for a group. It need not connect at once.
	Remote func(to peer.ID, group string) (Remote, error)
	// Fatal hears, once, of a failure after which this peer must not go on: its disk or its state.
	Fatal func(error)

	Replica  replica.Config     // Storage and Applied are set here
	Recorder transport.Recorder // nil: nobody
	Logger   *slog.Logger       // nil: silence
}

// Plane is the coordination plane of this peer. It implements coord.Actor, coord.Reader and
// coord.Overseer. Safe for concurrent use.
type Plane struct {
	Config
	self    peer.ID
	name    string // self as an owner
	store   *bootstrap.Store
	disk    *raftlog.Storage
	founder *bootstrap.Founder
	ask     *transport.Exchange
	herald  *announce.Herald // nil without PubSub

	seeker     *seeker
	remotes    *remotes
	slots      *slots
	abroad     atomic.Int64 // calls that wait for another peer's answer
	candidates candidates
	standing   standing

	here   atomic.Pointer[local] // this peer as a member; nil while it is none
	over   atomic.Bool           // it was one of an incarnation that is over
	life   *lifetime             // ends when Close begins
	failed sync.Once
	down   sync.Once

	undoing chan struct{} // one for each command of others that is being undone
}

// Open starts the plane of this peer: it looks for the group, founds it with others if it may,
// and joins it if it is wanted. Errors: Conflict when the data directory belongs to another
// group or network; Invalid; Internal.
func Open(c Config) (*Plane, error) {
	const op = "group.Open"
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if err := c.Network.Validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	p := &Plane{Config: c, self: c.Host.ID(), name: c.Host.ID().String(), candidates: candidates{seen: map[peer.ID]candidate{}}}
	p.standing.changed = make(chan struct{})
	p.life = newLifetime()
	p.remotes = &remotes{dial: func(to peer.ID) (Remote, error) { return c.Remote(to, p.ID()) }, open: map[peer.ID]Remote{}}
	p.seeker = newSeeker(p)
	p.slots, p.undoing = newSlots(maxSlots, p.openClient), make(chan struct{}, maxUndoing)
	if err := p.open(); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, p.Close()))
	}
	for _, work := range []func(){func() { p.fatal(p.founder.Run(p.life)) }, p.enter, p.attend, p.follow, p.tend, p.study} {
		p.life.start(work)
	}
	return p, nil
}

// open opens what lies on the disk and the exchange with other peers.
func (p *Plane) open() (err error) {
	place := bootstrap.Place{Dir: filepath.Join(p.Dir, "founding"), Marks: p.Marks}
	if p.store, err = bootstrap.OpenStore(p.FS, place, p.self, p.Network.ID()); err != nil {
		return err
	}
	var raftID uint64
	if p.Network.Eligible(p.self) {
		p.disk, err = raftlog.Open(raftlog.Options{FS: p.FS, Dir: filepath.Join(p.Dir, "raft"), Logger: p.Logger})
		if err != nil {
			return err
		}
		raftID = p.disk.Member()
	}
	p.ask, err = transport.NewExchange(transport.ExchangeConfig{Host: p.Host, Logger: p.Logger})
	if err != nil {
		return err
	}
	p.founder, err = bootstrap.New(bootstrap.Options{
		Network: p.Network, Key: p.Key, RaftID: raftID, Voters: p.Voters, Store: p.store,
		Messenger: messenger{p.ask}, Rand: newRand(), Now: time.Now, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	p.ask.Handle(transport.Founding, p.hearFounding)
	p.ask.Handle(transport.Information, p.inform)
	if p.PubSub != nil {
		p.herald, err = announce.New(announce.Config{
			PubSub: p.PubSub, Network: p.Network, Key: p.Key, Heard: p.seeker.learn, Logger: p.Logger,
		})
	}
	return err
}

// Close hands the leadership over, if this peer has it, and stops. The peer stays a member. It
// waits for all that it started.
func (p *Plane) Close() error {
	var errs []error
	p.down.Do(func() {
		if l := p.here.Load(); l != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			errs = append(errs, l.close(ctx))
			cancel()
		}
		p.life.end()
		if p.herald != nil {
			errs = append(errs, p.herald.Close())
		}
		if p.ask != nil {
			errs = append(errs, p.ask.Close())
		}
		p.life.work.Wait()
		if l := p.here.Load(); l != nil { // it may have become one meanwhile
			errs = append(errs, l.close(p.life))
		}
		errs = append(errs, p.remotes.close())
		if p.disk != nil {
			errs = append(errs, p.disk.Close())
		}
		if p.store != nil {
			errs = append(errs, p.store.Close())
		}
	})
	return fault.Wrap("group.Close", errors.Join(errs...))
}

// fatal reports a failure that ends the peer, the first one only.
func (p *Plane) fatal(err error) {
	if err != nil {
		p.failed.Do(func() { p.Fatal(err) })
	}
}

// openClient makes an identity for commands of this peer.
func (p *Plane) openClient(ctx context.Context) (coord.ClientID, error) {
	var id coord.ClientID
	err := p.insist(ctx, func(ctx context.Context, t target) error {
		result, _, err := t.Do(ctx, coord.Command{Owner: p.name, Op: &coord.ClientOpen{}})
		id = result.Client
		return err
	})
	return id, err
}

// remotes are the contracts at other peers, kept while they are in use.
type remotes struct {
	dial func(peer.ID) (Remote, error)

	mu   sync.Mutex
	open map[peer.ID]Remote // nil when closed
}

// maxRemotes bounds the connections kept: those to the members of a group, and some.
const maxRemotes = 16

func (r *remotes) get(p peer.ID) (Remote, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		return nil, fault.New("group.remotes", fault.Unavailable, "is closed")
	}
	if got, ok := r.open[p]; ok {
		return got, nil
	}
	for old, one := range r.open {
		if len(r.open) < maxRemotes {
			break
		}
		delete(r.open, old)
		_ = one.Close() // what was under way there is tried again
	}
	made, err := r.dial(p)
	if err != nil {
		return nil, err
	}
	r.open[p] = made
	return made, nil
}

func (r *remotes) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, one := range r.open {
		errs = append(errs, one.Close())
	}
	r.open = nil
	return errors.Join(errs...)
}
