package requirement

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
	requirements.Status // zero: unreadable
	mod                 coord.Revision
	deleted             bool // by this Evaluator at mod
}

// apply applies a change of a key, or its deletion.
func (w *writer) apply(kv *apiv1.KeyVal, deleted bool) {
	key, value, at := string(kv.GetKey()), kv.GetValue(), coord.Revision(kv.GetModRevision())
	if deleted {
		value = nil
	} else if value == nil { // of no bytes
		value = []byte{}
	}
	if inside, ok := directory.Inside(key); ok {
		w.change(inside, value, at)
	} else if name, ok := strings.CutPrefix(key, requirements.Prefix); ok {
		w.define(name, value, at)
	} else if name, ok := strings.CutPrefix(key, requirements.StatusPrefix); ok {
		w.observe(name, value, at)
	}
}

// observe notes a stored status; nil deletes it. An event up to the last own write is old.
func (w *writer) observe(name string, value []byte, at coord.Revision) {
	if last := w.written[name]; at <= last.mod {
		if value == nil && at == last.mod {
			delete(w.written, name)
		}
		return
	}
	delete(w.written, name)
	if value != nil {
		s, _ := requirements.DecodeStatus(value)
		w.written[name] = written{Status: s, mod: at}
	}
	w.due[name], w.urgent = true, true
}

// take applies the events of an answer and stores new states at once.
func (w *writer) take(ctx context.Context, r *apiv1.WatchKeysResponse) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range r.GetEvents() {
		w.apply(e.GetKv(), e.GetType() == apiv1.KeyEvent_DELETE)
	}
	if !w.urgent {
		return nil
	}
	return w.flush(ctx)
}

// flushLate stores new counts and repeats failed writes until ctx ends.
func (w *writer) flushLate(ctx context.Context) error {
	for pause.For(ctx, settleTime) {
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
	return nil
}

// wanted returns the status to store, or false for none.
func (w *writer) wanted(name string) (requirements.Status, bool) {
	r := w.requirements[name]
	if r == nil {
		return requirements.Status{}, false
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
		if has, ok := w.written[name]; wanted == (ok && !has.deleted) && s == has.Status {
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
	txn, stored := &apiv1.TxnRequest{}, make([]written, len(names))
	for i, name := range names {
		key, has := requirements.StatusKey(name), w.written[name]
		s, wanted := w.wanted(name)
		stored[i] = written{Status: s, deleted: !wanted}
		change := coord.PutStep(key, s.Encode(), 0)
		if !wanted {
			change = coord.Exactly(key).DeleteStep()
		}
		if has.deleted {
			has.mod = 0
		}
		txn.Compare, txn.Then = append(txn.Compare, coord.WhileAt(key, has.mod)), append(txn.Then, change)
	}
	result, err := w.Member.Execute(ctx, coord.CommandOf(w.Self, txn))
	if err == nil {
		err = coord.Unmet(result.GetTxn())
	}
	switch {
	case err == nil:
		for i, name := range names {
			delete(w.due, name)
			stored[i].mod = coord.Revision(result.GetTxn().GetHeader().GetRevision())
			w.written[name] = stored[i]
		}
	case rejected(err) && len(names) == 1:
		w.Logger.Debug("the group rejected the status of a requirement", "name", names[0], "error", err)
		if fault.KindOf(err) == fault.LimitReached || fault.KindOf(err) == fault.PoolExhausted {
			w.full = time.Now()
		} else {
			delete(w.due, names[0])
		}
	}
	return err
}
