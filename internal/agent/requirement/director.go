// Package requirement runs the director of requirements at the peer that leads the group, and only there.
//
// It begins with the complete directory, all requirements and all verdicts, read at one revision, and
// follows the three by one watch from there. What it finds it writes down as verdicts, which are ordinary keys:
// every peer answers from them, and who waits for one watches it. So whoever takes over needs to know
// nothing of the one before.
//
// # One word
//
// A verdict is written under the condition that its key is as this director knows it. It reads on
// what it wrote itself, and what others did: a verdict that is not what it says of a requirement, be it
// another's or the last word of a director that was deposed, is put right as soon as it is seen.
package requirement

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/verdict"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	settling   = 250 * time.Millisecond // for a count that changes no state, before it is written down
	firstPause = 50 * time.Millisecond  // after a failure
	lastPause  = 2 * time.Second
	answering  = 10 * time.Second // for one call of the group
	page       = 1000             // keys read at a time
)

// Leader knows who leads the group.
type Leader interface {
	// Leading tells who leads: in which term, by name, "" for nobody who is known, and a channel that is closed when
	// that changes.
	Leading() (term uint64, leader string, changed <-chan struct{})
}

// Config is what a Director is made of. All but the Logger are required.
type Config struct {
	Self   string // as the Leader names this peer
	Leader Leader
	// Reader and Actor are those of this peer's own member: what a peer that leads no more tries to
	// write is better lost than passed on to the one that does.
	Reader coord.Reader
	Actor  coord.Actor
	Logger *slog.Logger // nil: silence
}

// Director directs while its peer leads.
type Director struct{ Config }

// New makes a Director.
func New(c Config) *Director {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Director{c}
}

// Run directs whenever this peer leads, until ctx ends.
func (d *Director) Run(ctx context.Context) {
	wait := firstPause
	for ctx.Err() == nil {
		term, leader, changed := d.Leader.Leading()
		if leader != d.Self {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			wait = firstPause
			continue
		}
		began := time.Now()
		err := d.reign(ctx, term, changed)
		if ended(changed) || ctx.Err() != nil {
			continue
		}
		d.Logger.Warn("the requirements are read anew", "error", err, "term", term)
		if time.Since(began) > lastPause {
			wait = firstPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, lastPause)
	}
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// reign directs until something fails, or it is over.
func (d *Director) reign(ctx context.Context, term uint64, over <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		select {
		case <-over:
			cancel()
		case <-ctx.Done():
		}
	})
	keys, at, err := d.read(ctx)
	if err != nil {
		return err
	}
	b := newBench(d, keys, at)
	d.Logger.Info("directs the requirements", "term", term, "revision", at, "requirements", len(b.defined))
	batches, failed := make(chan coord.Batch), make(chan error, 1)
	work.Go(func() {
		failed <- d.Reader.Watch(ctx, coord.Watch{Span: span(), From: at + 1}, func(b coord.Batch, _ coord.Header) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return b.sit(ctx, batches, failed)
}

// span has the directory, the requirements and the verdicts, and what lies between them.
func span() coord.Span {
	return coord.Span{From: coord.DirectoryPrefix, To: coord.Under(verdict.Prefix).To}
}

// read gives all that concerns the director at one revision.
func (d *Director) read(ctx context.Context) (keys []*coord.KeyValue, at coord.Revision, err error) {
	for _, prefix := range []string{coord.DirectoryPrefix, coord.RequirementsPrefix, verdict.Prefix} {
		for q := (coord.Query{Span: coord.Under(prefix), At: at, Limit: page}); ; q.At = at {
			bounded, cancel := context.WithTimeout(ctx, answering)
			got, _, err := d.Reader.Range(bounded, q, coord.Linearizable)
			cancel()
			if err != nil {
				return nil, 0, fault.Wrap("director.read", err)
			}
			if got.Revision == 0 { // nothing was ever written; read on at 0 would be at whatever is written meanwhile
				return nil, 0, nil
			}
			keys, at = append(keys, got.Keys...), got.Revision
			if q.Span.From = got.Next; got.Next == "" {
				break
			}
		}
	}
	return keys, at, nil
}
