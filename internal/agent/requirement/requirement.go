// Package requirement evaluates requirements against the directory, at the peer
// that leads the group.
//
// An Evaluator reads the complete directory, all requirements and all statuses
// at one revision and follows the three by one watch. It stores each result as
// a status: an ordinary key, read and watched by every peer. A new leader
// therefore needs no state of the previous one, and a requirement without enough
// instances is evaluated again exactly when an entry of its service changes.
//
// Each write of a status is guarded by the revision this Evaluator knows. The
// late write of a deposed leader fails, and a foreign value is overwritten as
// soon as the watch delivers it.
//
// Evaluation at the leader, from the complete directory and again after late
// registrations, comes from the design document "Service Discovery Race
// Condition". Its Director is this Evaluator. Directory entries are opaque here:
// a key and a value for a Counter.
package requirement

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const (
	settleTime  = 250 * time.Millisecond // delay of a new count without a new state
	minBackOff  = 50 * time.Millisecond  // after a failure
	maxBackOff  = 2 * time.Second        // after repeated failures, and after a full store
	callTimeout = 10 * time.Second       // one call to the group
	pageSize    = 1000                   // keys of one answer
)

// Leader knows the group's leader.
type Leader interface {
	// Leading returns the term, the leader's peer id ("" if unknown), and a
	// channel closed at the next change.
	Leading() (term uint64, leader string, changed <-chan struct{})
}

// Group is the group as an Evaluator uses it.
type Group = coord.Service

// Counter decodes a requirement's question: the names of the service, and a
// function that reports whether the value of an entry counts.
type Counter func(question []byte) (namespace, service string, counts func(value []byte) bool, err error)

// Config configures an Evaluator. Only the Logger is optional.
type Config struct {
	Counter Counter // instance.Counter
	Self    string  // id of this peer
	Leader  Leader
	// Member is this peer's own member: the write of a deposed leader fails there
	// instead of reaching the new leader.
	Member Group
	Logger *slog.Logger // nil means no log
}

// Evaluator evaluates requirements whenever its peer leads.
type Evaluator struct{ Config }

// New returns an Evaluator.
func New(c Config) *Evaluator {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Evaluator{c}
}

// Run evaluates during each term of this peer, until ctx ends.
func (e *Evaluator) Run(ctx context.Context) {
	backOff := minBackOff
	for ctx.Err() == nil {
		term, leader, changed := e.Leader.Leading()
		if leader != e.Self {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			backOff = minBackOff
			continue
		}
		began := time.Now()
		err := e.lead(ctx, term, changed)
		if time.Since(began) > maxBackOff {
			backOff = minBackOff
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-time.After(backOff):
			e.Logger.Warn("evaluation of requirements failed and starts again", "error", err, "term", term)
			backOff = min(2*backOff, maxBackOff)
		}
	}
}

// lead evaluates until a failure or the end of the term.
func (e *Evaluator) lead(ctx context.Context, term uint64, over <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	work.Go(func() {
		select {
		case <-over:
			cancel(nil)
		case <-ctx.Done():
		}
	})
	keys, at, err := e.read(ctx)
	if err != nil {
		return err
	}
	w := &writer{Evaluator: e, table: newTable(e.Counter), written: map[string]written{}}
	for _, kv := range keys {
		w.apply(kv, false)
	}
	e.Logger.Info("this peer evaluates the requirements", "term", term, "revision", at, "requirements", len(w.requirements))
	if err := w.flush(ctx); err != nil {
		return err
	}
	work.Go(func() { cancel(w.flushLate(ctx)) })
	err = e.Member.Watch(ctx, &apiv1.WatchKeysRequest{Prefix: true, StartRevision: at + 1}, func(r *apiv1.WatchKeysResponse) error {
		return w.take(ctx, r)
	})
	if cause := context.Cause(ctx); cause != nil && cause != ctx.Err() {
		return cause
	}
	return err
}

// read returns all relevant keys at one revision.
func (e *Evaluator) read(ctx context.Context) (keys []*apiv1.KeyVal, at int64, err error) {
	for _, prefix := range []string{directory.Prefix, directory.OutsidePrefix, requirements.Prefix, requirements.StatusPrefix} {
		for q := coord.Under(prefix).Request(pageSize); ; {
			q.Revision = at
			bounded, cancel := context.WithTimeout(ctx, callTimeout)
			got, err := coord.Range(bounded, e.Member, q)
			cancel()
			if err != nil {
				return nil, 0, fault.Wrap("requirement.read", err)
			}
			keys, at = append(keys, got.GetKvs()...), got.GetRevision()
			if q.From = got.GetNext(); len(q.From) == 0 {
				break
			}
		}
	}
	return keys, at, nil
}
