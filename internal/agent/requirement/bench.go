package requirement

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/director"
	"github.com/blackhole/blackhole/pkg/coord/verdict"
	"github.com/blackhole/blackhole/pkg/fault"
)

// together bounds the verdicts written by one command.
const together = 256

// bench is where a reign's verdicts are come to. It is for one goroutine.
type bench struct {
	*Director
	judge   *director.Director
	defined map[string]coord.Revision // when each requirement was last changed
	written map[string]word           // the verdicts that there are
	due     map[string]struct{}       // requirements whose verdict may not be what is written
	urgent  bool                      // one of them is not only of another count
}

// word is a verdict as it is written.
type word struct {
	verdict.Verdict // zero: it cannot be read
	mod             coord.Revision
	gone            bool // it was deleted at mod
}

// guard is the condition that nobody has written since.
func (w word) guard(key string) coord.Guard {
	if w.gone {
		return coord.IfRevision(key, 0)
	}
	return coord.IfRevision(key, w.mod)
}

// newBench begins with all keys at a revision.
func newBench(d *Director, keys []*coord.KeyValue, at coord.Revision) *bench {
	b := &bench{
		Director: d, judge: director.New(), defined: map[string]coord.Revision{}, written: map[string]word{},
		due: map[string]struct{}{}, urgent: true,
	}
	b.judge.Reset(keys, at)
	for _, kv := range keys {
		b.note(kv.Key, kv, kv.ModRevision)
	}
	return b
}

// note takes in the version of a key; nil: it is gone.
func (b *bench) note(key string, kv *coord.KeyValue, at coord.Revision) {
	if name, ok := strings.CutPrefix(key, coord.RequirementsPrefix); ok {
		b.due[name], b.urgent = struct{}{}, true
		if b.defined[name] = at; kv == nil {
			delete(b.defined, name)
		}
	} else if name, ok := verdict.Name(key); ok {
		b.hear(name, kv, at)
	}
}

// hear takes in a verdict that was written. What is older than the one known is of this director's past.
func (b *bench) hear(name string, kv *coord.KeyValue, at coord.Revision) {
	has := b.written[name]
	if kv == nil && at >= has.mod {
		delete(b.written, name)
	}
	if at <= has.mod {
		return
	}
	if kv != nil {
		if _, lock := kv.Claim(); lock {
			return // somebody's lock has such a name
		}
		v, _ := verdict.Decode(kv.Value)
		b.written[name] = word{Verdict: v, mod: at}
	}
	b.due[name], b.urgent = struct{}{}, true
}

// take follows a batch.
func (b *bench) take(batch coord.Batch) {
	for _, e := range batch.Events {
		b.note(e.Key, e.KV, e.Revision)
	}
	for _, c := range b.judge.Advance(batch.Events, batch.Next-1) {
		b.due[c.Name] = struct{}{}
		b.urgent = b.urgent || c.Turned()
	}
}

// sit follows batches and writes verdicts until something fails.
func (b *bench) sit(ctx context.Context, batches <-chan coord.Batch, failed <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed, more := true, false
	for {
		select {
		case batch := <-batches:
			b.take(batch)
			more = batch.More
		case <-timer.C:
			armed, b.urgent, more = false, true, false
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		pause := settling
		if b.urgent && !more { // what is behind need not be told of what is over
			if err := b.write(ctx); err != nil {
				return err
			}
			pause = lastPause // there is no room for what is left
		}
		if len(b.due) > 0 && !armed {
			timer.Reset(pause)
			armed = true
		}
	}
}

// want is what is to be written of a requirement; false: nothing.
func (b *bench) want(name string) (verdict.Verdict, bool) {
	s, ok := b.judge.Get(name)
	if !ok {
		return verdict.Verdict{}, false
	}
	v, has := verdict.From(s, b.defined[name]), b.written[name]
	if has.Of == v.Of && has.State == v.State { // it has been so for longer than this director knows
		v.Revision = has.Revision
	}
	return v, true
}

// write writes what is due. What is refused stays due.
func (b *bench) write(ctx context.Context) error {
	b.urgent = false
	for name := range b.due {
		v, wanted := b.want(name)
		if has, is := b.written[name]; wanted == (is && !has.gone) && v.Same(has.Verdict) {
			delete(b.due, name)
		}
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(b.due)), together) {
		err := b.put(ctx, names)
		for i := 0; refused(err) && len(names) > 1 && i < len(names); i++ { // one of them must not keep the others back
			if e := b.put(ctx, names[i:i+1]); e != nil && !refused(e) {
				err = e
			}
		}
		if err != nil && !refused(err) {
			return err
		}
	}
	return nil
}

// refused reports whether an error is of what is written, and not of the group that should have.
func refused(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		return false
	}
	return err != nil
}

// put writes verdicts by one command. One that is refused by itself is given up until its key changes: when it
// is not as this director knew it, that is about to be heard. Only for want of room is it tried again.
func (b *bench) put(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	op, said := &coord.Write{}, make([]word, len(names))
	for i, name := range names {
		key := verdict.Key(name)
		v, wanted := b.want(name)
		said[i] = word{Verdict: v, gone: !wanted}
		change := coord.Change{Put: &coord.Put{Key: key, Value: v.Encode()}}
		if !wanted {
			span := coord.Exactly(key)
			change = coord.Change{Delete: &span}
		}
		op.If, op.Then = append(op.If, b.written[name].guard(key)), append(op.Then, change)
	}
	result, _, err := b.Actor.Do(ctx, coord.Command{Owner: b.Self, Op: op})
	switch {
	case err == nil:
		for i, name := range names {
			delete(b.due, name)
			said[i].mod = result.Revision
			b.written[name] = said[i]
		}
	case refused(err) && len(names) == 1:
		b.Logger.Debug("a verdict was not written", "name", names[0], "error", err)
		if fault.KindOf(err) != fault.LimitReached {
			delete(b.due, names[0])
		}
	}
	return err
}
