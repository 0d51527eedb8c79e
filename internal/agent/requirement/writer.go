package requirement

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxStatuses bounds the statuses of one command.
const maxStatuses = 256

// writer stores outdated statuses.
type writer struct {
	*Evaluator

	mu sync.Mutex // guards the fields below; held during a write
	*table
	written map[string]written // stored statuses by name
	full    time.Time          // of the last write without room
}

// written is a stored status.
type written struct {
	coord.RequirementStatus // zero: unreadable
	mod                     coord.Revision
	deleted                 bool // by this Evaluator at mod
}

// apply applies a change of a key; nil deletes it.
func (w *writer) apply(key string, kv *coord.KeyValue, at coord.Revision) {
	if strings.HasPrefix(key, coord.DirectoryPrefix) {
		var value []byte
		if kv != nil {
			value = kv.Value
		}
		w.change(key, value, at)
	} else if name, ok := strings.CutPrefix(key, coord.RequirementsPrefix); ok {
		w.define(name, kv, at)
	} else if name, ok := strings.CutPrefix(key, coord.RequirementStatusPrefix); ok {
		w.observe(name, kv, at)
	}
}

// observe notes a stored status. An event up to the last own write is old.
func (w *writer) observe(name string, kv *coord.KeyValue, at coord.Revision) {
	if last := w.written[name]; at <= last.mod {
		if kv == nil && at == last.mod {
			delete(w.written, name)
		}
		return
	}
	delete(w.written, name)
	if kv != nil {
		s, _ := coord.DecodeRequirementStatus(kv.Value)
		w.written[name] = written{RequirementStatus: s, mod: at}
	}
	w.due[name], w.urgent = true, true
}

// take applies a batch and stores new states at once. A batch before others is
// in the past and not worth a write.
func (w *writer) take(ctx context.Context, b coord.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range b.Events {
		w.apply(e.Key, e.KV, e.Revision)
	}
	if !w.urgent || b.More {
		return nil
	}
	return w.flush(ctx)
}

// flushLate stores new counts and repeats failed writes until ctx ends.
func (w *writer) flushLate(ctx context.Context) error {
	tick := time.NewTicker(settleTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		w.mu.Lock()
		var err error
		if time.Since(w.full) >= maxBackOff {
			err = w.flush(ctx)
		}
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// wanted returns the status to store, or false for none.
func (w *writer) wanted(name string) (coord.RequirementStatus, bool) {
	r := w.requirements[name]
	if r == nil {
		return coord.RequirementStatus{}, false
	}
	s, has := r.status(), w.written[name]
	if has.Of == s.Of && has.State == s.State { // an earlier Evaluator knew the revision
		s.Revision = has.Revision
	}
	return s, true
}

// flush stores all outdated statuses. The caller holds mu. Errors: of the group;
// a rejected status is no error.
func (w *writer) flush(ctx context.Context) error {
	w.urgent = false
	for name := range w.due {
		s, wanted := w.wanted(name)
		if has, ok := w.written[name]; wanted == (ok && !has.deleted) && s == has.RequirementStatus {
			delete(w.due, name)
		}
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(w.due)), maxStatuses) {
		err := w.put(ctx, names)
		for i := 0; rejected(err) && len(names) > 1 && i < len(names); i++ { // one status must not block the others
			if e := w.put(ctx, names[i:i+1]); e != nil && !rejected(e) {
				err = e
			}
		}
		if err != nil && !rejected(err) {
			return err
		}
	}
	return nil
}

// rejected reports whether the group answered and refused the command.
func rejected(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		return false
	}
	return err != nil
}

// put stores statuses by one command. A status rejected alone is dropped until
// the next change of its key, which the watch delivers after a failed guard.
// Without room in the store it is tried again later.
func (w *writer) put(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	op, stored := &coord.Txn{}, make([]written, len(names))
	for i, name := range names {
		key, has := coord.RequirementStatusKey(name), w.written[name]
		s, wanted := w.wanted(name)
		stored[i] = written{RequirementStatus: s, deleted: !wanted}
		change := coord.Step{Put: &coord.Put{Key: key, Value: s.Encode()}}
		if !wanted {
			span := coord.Exactly(key)
			change = coord.Step{Delete: &span}
		}
		if has.deleted {
			has.mod = 0
		}
		op.If, op.Then = append(op.If, coord.IfRevision(key, has.mod)), append(op.Then, change)
	}
	result, _, err := coord.OpsOf(w.Member).Do(ctx, coord.Command{Owner: w.Self, Op: op})
	if err == nil {
		err = result.Txn.Unmet()
	}
	switch {
	case err == nil:
		for i, name := range names {
			delete(w.due, name)
			stored[i].mod = result.Revision
			w.written[name] = stored[i]
		}
	case rejected(err) && len(names) == 1:
		w.Logger.Debug("the group rejected the status of a requirement", "name", names[0], "error", err)
		if fault.KindOf(err) == fault.LimitReached || fault.KindOf(err) == fault.NoSpace {
			w.full = time.Now()
		} else {
			delete(w.due, names[0])
		}
	}
	return err
}
