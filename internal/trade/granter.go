package trade

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

const (
	maxQueued  = 512              // changes that wait for the granter
	maxBatch   = 128              // changes of one compare-and-swap
	maxSwaps   = 8                // attempts of a batch, while others change the ledger
	swapWithin = 5 * time.Second  // all attempts
	lookAgain  = 1 * time.Second  // after an expiry that was not made durable
	lookMoved  = 10 * time.Second // between two looks at where the ledger is, without changes
)

// granter is the only goroutine of this peer that changes its ledger. It makes all changes that wait durable in one
// compare-and-swap, and answers none before. Nothing is granted from memory.
type granter struct {
	group    func() (shelf, string, error) // where the ledger is, and its name: see Config.Group
	disk     *disk
	now      func() time.Duration
	suspends func() error                   // why this peer may grant nothing; nil: nothing does
	ended    func()                         // hears of each new ledger, and of the ends of grants
	told     func(began, ended []*pb.Entry) // hears of each durable change; nil: nobody does
	failed   func(error)                    // hears of each outage, and of its end by nil
	queue    chan *change                   // bounded
	current  atomic.Pointer[ledger.Ledger]
	outage   atomic.Pointer[error] // why nothing is granted, as of the last look; nil: before the first one

	// Of the goroutine alone:
	shelf    shelf  // nil: the durable ledger is not known
	at       string // its name
	last     home   // durable
	revision int64
	blocked  time.Duration // no new grants before: an earlier ledger may have given units that this one does not know
}

// change is one change of the ledger that waits.
type change struct {
	ctx   context.Context
	grant bool // takes units or gives them longer
	apply func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error)
	entry *pb.Entry
	err   error
	done  chan struct{}
}

// do makes a change, and returns the entry as it is then.
func (g *granter) do(ctx context.Context, grant bool, apply func(*ledger.Ledger, time.Duration) (*pb.Entry, error)) (*pb.Entry, error) {
	c := &change{ctx: ctx, grant: grant, apply: apply, done: make(chan struct{})}
	select {
	case g.queue <- c:
	default:
		return nil, fault.New("", fault.LimitReached, "%d changes wait for the ledger of the provider: try again later", maxQueued)
	}
	select {
	case <-c.done:
		return c.entry, c.err
	case <-ctx.Done():
		return nil, fault.Wrap("", ctx.Err())
	}
}

// run works until ctx ends.
func (g *granter) run(ctx context.Context) {
	timer := time.NewTimer(0) // the first look loads the ledger, and ends what has ended
	defer timer.Stop()
	for {
		var batch []*change
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case c := <-g.queue:
			batch = append(batch, c)
			for len(batch) < maxBatch && len(g.queue) > 0 {
				batch = append(batch, <-g.queue)
			}
		}
		batch = slices.DeleteFunc(batch, func(c *change) bool { return c.ctx.Err() != nil })
		var err error
		if len(batch) > 0 || g.disk.get(homeName) != nil { // most peers have never granted anything
			err = g.work(ctx, batch)
		}
		outage := cmp.Or(err, g.forgets())
		g.outage.Store(&outage)
		if g.failed != nil {
			g.failed(outage)
		}
		for _, c := range batch {
			if err != nil {
				c.entry, c.err = nil, err
			}
			close(c.done)
		}
		g.ended()
		next := lookMoved
		if at, ok := g.current.Load().Next(); ok {
			next = min(next, at-g.now())
		}
		if err != nil {
			next = max(next, lookAgain)
		}
		timer.Reset(max(next, 0))
	}
}

// work makes a batch of changes, and what time has changed.
func (g *granter) work(ctx context.Context, batch []*change) error {
	ctx, cancel := context.WithTimeout(ctx, swapWithin)
	defer cancel()
	for range maxSwaps {
		if err := g.load(ctx); err != nil {
			return err
		}
		was := g.current.Load()
		l := was.Clone()
		changed := l.Expire(g.now())
		for _, c := range batch {
			before := l.State().GetLastToken()
			if c.entry, c.err = nil, g.may(c); c.err == nil {
				c.entry, c.err = c.apply(l, g.now())
			}
			if c.err == nil {
				c.entry = proto.CloneOf(c.entry)
			}
			changed = changed || l.State().GetLastToken() != before || c.err == nil && !proto.Equal(c.entry, entryOf(was, c.entry.Token))
		}
		if !changed {
			return nil
		}
		err := g.keep(ctx, l)
		if err == nil {
			return nil
		}
		g.shelf = nil // what is durable now is not known
		if fault.KindOf(err) != fault.Conflict {
			return fault.New("", fault.Unavailable, "the ledger of the provider was not written, so nothing is granted: %w", err)
		}
	}
	return fault.New("", fault.Unavailable, "another machine changes the ledger of the provider all the time")
}

func entryOf(l *ledger.Ledger, token uint64) *pb.Entry {
	i := slices.IndexFunc(l.Entries(), func(e *pb.Entry) bool { return e.Token == token })
	if i < 0 {
		return nil
	}
	return l.Entries()[i]
}

// may refuses changes that give units while this peer must not.
func (g *granter) may(c *change) error {
	if !c.grant {
		return nil
	}
	if err := g.suspends(); err != nil {
		return err
	}
	return g.forgets()
}

// forgets refuses new grants while earlier ones may live that the ledger does not know.
func (g *granter) forgets() error {
	if left := g.blocked - g.now(); left > 0 {
		return fault.New("", fault.Unavailable, "the provider has lost sight of its earlier grants, and grants again in %v", left.Round(time.Second))
	}
	return nil
}

// refuses says why this peer grants nothing now, as far as it knows without a change; nil: it grants.
func (g *granter) refuses() error {
	if err := g.suspends(); err != nil {
		return err
	}
	if outage := g.outage.Load(); outage != nil {
		return *outage
	}
	return fault.New("", fault.Unavailable, "the provider has just started, and reads its ledger")
}

// home says where the ledger was last, durably.
type home struct {
	Name    string        `json:"name"`
	Longest time.Duration `json:"longest"` // of all its grants
}

// ownHome is the name of this peer's own disk.
const ownHome = "disk"

// load finds out where the ledger is, and reads it after a move or a failed write.
func (g *granter) load(ctx context.Context) error {
	at, name, err := g.group()
	if err != nil {
		return fault.New("", fault.Unavailable, "the coordination group, which keeps the ledger of the provider, cannot be asked: %w", err)
	}
	if at == nil {
		at, name = g.disk, ownHome
	}
	if g.shelf != nil && g.at == name {
		return nil
	}
	value, revision, err := at.read(ctx)
	if err != nil {
		return fault.New("", fault.Unavailable, "the ledger of the provider was not read: %w", err)
	}
	state := &pb.Ledger{}
	if err := proto.Unmarshal(value, state); err != nil {
		return fault.As("", fault.Internal, err)
	}
	if text := g.disk.get(homeName); text != nil {
		if err := json.Unmarshal(text, &g.last); err != nil {
			return fault.As("", fault.Internal, err)
		}
	}
	last, before := g.last, g.current.Load()
	switch {
	case last.Name == "" || last.Name == name:
	case last.Name == g.at: // it moved while this process knew it
		state = ledger.Merge(before.State(), state)
	case last.Name == ownHome:
		old, _, _ := g.disk.read(ctx) // no error
		kept := &pb.Ledger{}
		if err := proto.Unmarshal(old, kept); err != nil {
			return fault.As("", fault.Internal, err)
		}
		state = ledger.Merge(kept, state)
	default:
		g.blocked = max(g.blocked, g.now()+last.Longest+last.Longest/10)
	}
	g.shelf, g.at, g.revision = at, name, revision
	g.current.Store(ledger.Load(state, before, g.now()))
	return nil
}

// keep makes a ledger durable, and then visible.
func (g *granter) keep(ctx context.Context, l *ledger.Ledger) error {
	value, err := proto.Marshal(l.State())
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	longest := time.Duration(l.State().GetLongestMs()) * time.Millisecond
	if err := g.note(home{cmp.Or(g.last.Name, g.at), longest}); err != nil { // before a grant that lasts so long
		return err
	}
	if g.revision, err = g.shelf.swap(ctx, g.revision, value); err != nil {
		return err
	}
	if err := g.note(home{g.at, longest}); err != nil { // after a move: the grants of before are at the new place
		return err
	}
	before := g.current.Swap(l)
	if g.told != nil {
		g.told(l.News(before))
	}
	return nil
}

// note remembers where the ledger is.
func (g *granter) note(h home) error {
	if h == g.last {
		return nil
	}
	text, err := json.Marshal(h)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	if err := g.disk.put(homeName, text); err != nil {
		return err
	}
	g.last = h
	return nil
}
