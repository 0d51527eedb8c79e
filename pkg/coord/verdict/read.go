package verdict

import (
	"context"
	"errors"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// page is how many keys are read at a time.
const page = 256

// Standing is a requirement and the verdict on it.
type Standing struct {
	coord.Requirement
	Verdict
}

// standing joins what was read of a requirement; a verdict on what it was before does not count.
func standing(kv *coord.KeyValue, v Verdict) (Standing, error) {
	r, err := coord.RequirementOf(kv)
	if err != nil {
		return Standing{}, err
	}
	if v.Of != kv.ModRevision {
		v = Verdict{State: Pending, Needed: r.Min, Revision: kv.ModRevision, Of: kv.ModRevision}
	}
	return Standing{r, v}, nil
}

// Get tells how a requirement stands, linearizably: the verdict is the last one written down, which
// follows the directory within the time of one command. Errors: NotFound, field "name"; those of the reader.
func Get(ctx context.Context, r coord.Reader, name string) (Standing, coord.Header, error) {
	s, _, h, err := get(ctx, r, name)
	return s, h, fault.Wrap("verdict.Get", err)
}

// get is Get, and tells from which revision to watch the verdict. The verdict is read first: if it is of the
// requirement as it is read then, both belong together.
func get(ctx context.Context, r coord.Reader, name string) (s Standing, from coord.Revision, h coord.Header, err error) {
	page, _, err := r.Range(ctx, coord.Query{Span: coord.Exactly(Key(name))}, coord.Linearizable)
	if err != nil {
		return s, 0, h, err
	}
	var v Verdict
	if len(page.Keys) == 1 {
		v, _ = Decode(page.Keys[0].Value) // what nobody can read is about to be written anew
	}
	from = page.Revision + 1
	page, h, err = r.Range(ctx, coord.Query{Span: coord.Exactly(coord.RequirementKey(name))}, coord.Linearizable)
	if err == nil && len(page.Keys) == 0 {
		err = &fault.Error{Kind: fault.NotFound, Field: "name", Value: name, Err: errors.New("is no requirement's")}
	}
	if err != nil {
		return s, 0, h, err
	}
	s, err = standing(page.Keys[0], v)
	return s, from, h, err
}

// Satisfied reports whether there are as many instances as it needs.
func (s Standing) Satisfied() bool { return s.State == Satisfied }

// Judged reports whether a director has said so.
func (s Standing) Judged() bool { return s.State != Pending }

// Await waits until a requirement stands as is wanted, such as Standing.Satisfied, and tells how it stands then. If
// it cannot wait so long, it tells how the requirement stood when it last heard of it, beside the error.
//
// Errors: Timeout, Canceled; NotFound, field "name", also when the requirement is deleted meanwhile; those of the
// reader.
func Await(ctx context.Context, r coord.Reader, name string, wanted func(Standing) bool) (Standing, coord.Header, error) {
	const op = "verdict.Await"
	w := waiter{wanted: wanted}
	for {
		s, from, h, err := get(ctx, r, name)
		if err != nil {
			return w.last, w.header, fault.Wrap(op, err)
		}
		if w.last, w.header = s, h; wanted(s) {
			return s, h, nil
		}
		err = w.watch(ctx, r, from)
		if wanted(w.last) {
			return w.last, w.header, nil
		}
		var past *coord.Compacted
		if err != nil && !errors.As(err, &past) {
			return w.last, w.header, fault.Wrap(op, err)
		}
	}
}

// waiter is what an Await knows.
type waiter struct {
	wanted func(Standing) bool
	last   Standing
	header coord.Header
}

// watch keeps up with the verdict until it is wanted, or all is to be read anew: nil.
func (w *waiter) watch(ctx context.Context, r coord.Reader, from coord.Revision) error {
	enough := false
	err := r.Watch(ctx, coord.Watch{Span: coord.Exactly(Key(w.last.Name)), From: from}, func(b coord.Batch, h coord.Header) error {
		for _, e := range b.Events {
			if enough = w.hear(e, h); enough {
				return fault.New("verdict.Await", fault.Canceled, "it knows what it waited for")
			}
		}
		return nil
	})
	if enough {
		return nil
	}
	return err
}

// hear takes in a change of the verdict, and reports whether there is no more to wait for.
func (w *waiter) hear(e coord.Event, h coord.Header) bool {
	if e.Deletes() {
		return true
	}
	v, err := Decode(e.KV.Value)
	switch {
	case err != nil || v.Of < w.last.Of: // not the director's, or the last word of one that was deposed
		return false
	case v.Of > w.last.Of:
		return true
	}
	w.last.Verdict, w.header = v, h
	return w.wanted(w.last)
}

// List tells how all requirements stand, by name. Errors: those of the reader.
func List(ctx context.Context, r coord.Reader) ([]Standing, coord.Header, error) {
	const op = "verdict.List"
	verdicts := map[string]Verdict{}
	_, err := each(ctx, r, coord.Under(Prefix), func(kv *coord.KeyValue) {
		if v, err := Decode(kv.Value); err == nil {
			name, _ := Name(kv.Key)
			verdicts[name] = v
		}
	})
	if err != nil {
		return nil, coord.Header{}, fault.Wrap(op, err)
	}
	var all []Standing
	h, err := each(ctx, r, coord.Under(coord.RequirementsPrefix), func(kv *coord.KeyValue) {
		if s, err := standing(kv, verdicts[kv.Key[len(coord.RequirementsPrefix):]]); err == nil {
			all = append(all, s)
		}
	})
	return all, h, fault.Wrap(op, err)
}

// each reads the keys of a span, each as it is then.
func each(ctx context.Context, r coord.Reader, span coord.Span, take func(*coord.KeyValue)) (coord.Header, error) {
	for {
		got, h, err := r.Range(ctx, coord.Query{Span: span, Limit: page}, coord.Linearizable)
		if err != nil {
			return h, err
		}
		for _, kv := range got.Keys {
			take(kv)
		}
		if got.Next == "" {
			return h, nil
		}
		span.From = got.Next
	}
}
