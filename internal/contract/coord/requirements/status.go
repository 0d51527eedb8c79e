package requirements

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// StatusPrefix is the prefix of status keys. Every client may write there; the evaluator corrects foreign values.
const StatusPrefix = "requirements-status/"

// State says whether a requirement is satisfied.
type State string

// The states of a requirement.
const (
	Satisfied    State = "satisfied"
	Insufficient State = "insufficient_nodes"
	Pending      State = "pending" // not evaluated yet; never stored
)

// Status is the result of evaluating a requirement. The evaluator at the group's leader stores it under StatusKey, so that
// every peer reads the same status, a watch wakes waiters at any peer, and a new leader continues from it.
type Status struct {
	State     State `json:"state"`
	Needed    int   `json:"needed"`
	Available int   `json:"available"`
	// Revision of the change to State, as far as the evaluator saw it.
	Revision coord.Revision `json:"revision"`
	// Of is the mod revision of the evaluated requirement. The status of an older
	// version counts as pending.
	Of coord.Revision `json:"of"`
	// Problem explains why the evaluator cannot count, for example an unreadable
	// version range. The state is then insufficient.
	Problem string `json:"problem,omitempty"`
}

// Evaluated is a requirement with its status.
type Evaluated struct {
	Requirement
	Status
}

// StatusKey is the key of a requirement's status.
func StatusKey(name string) string { return StatusPrefix + name }

// Satisfied reports whether enough instances are available.
func (s Status) Satisfied() bool { return s.State == Satisfied }

// Evaluated reports whether an evaluator has seen the requirement.
func (s Status) Evaluated() bool { return s.State != Pending }

// Encode returns the value of a status key: JSON, for readers of the keys.
func (s Status) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("requirements: " + err.Error()) // impossible: numbers and text only
	}
	return b
}

// DecodeStatus reads the value of a status key. Errors: Invalid.
func DecodeStatus(b []byte) (Status, error) {
	const op = "requirements.DecodeStatus"
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return Status{}, fault.As(op, fault.Invalid, err)
	}
	if s.State != Satisfied && s.State != Insufficient {
		return Status{}, fault.Wrap(op, fault.Invalidf("state", string(s.State), "must be %s or %s", Satisfied, Insufficient))
	}
	return s, nil
}

// evaluated joins a requirement with its status. The status of an older version
// of the requirement is pending.
func evaluated(kv *apiv1.KeyVal, s Status) (Evaluated, error) {
	r, err := Of(string(kv.GetKey()), kv.GetValue())
	if err != nil {
		return Evaluated{}, err
	}
	if defined := coord.Revision(kv.GetModRevision()); s.Of != defined {
		s = Status{State: Pending, Needed: r.Min, Revision: defined, Of: defined}
	}
	return Evaluated{r, s}, nil
}

// Get returns a requirement with its stored status, which follows the directory by one command. The read is linearizable.
// Errors: NotFound, field "name"; as the service.
func Get(ctx context.Context, s coord.Service, name string) (Evaluated, *apiv1.Header, error) {
	e, _, h, err := get(ctx, s, name)
	return e, h, fault.Wrap("requirements.Get", err)
}

// get also returns the revision for a watch of the status. The status is read first: a status of the requirement read later
// belongs to it.
func get(ctx context.Context, service coord.Service, name string) (e Evaluated, from int64, h *apiv1.Header, err error) {
	page, err := coord.Range(ctx, service, &apiv1.RangeRequest{Key: []byte(StatusKey(name))})
	if err != nil {
		return e, 0, nil, err
	}
	var s Status
	if kvs := page.GetKvs(); len(kvs) == 1 {
		s, _ = DecodeStatus(kvs[0].GetValue()) // the evaluator replaces unreadable values
	}
	from = page.GetRevision() + 1
	page, err = coord.Range(ctx, service, &apiv1.RangeRequest{Key: []byte(Key(name))})
	if err == nil && len(page.GetKvs()) == 0 {
		err = &fault.Error{Kind: fault.NotFound, Field: "name", Value: name, Err: errors.New("no requirement has this name")}
	}
	if err != nil {
		return e, 0, page.GetHeader(), err
	}
	e, err = evaluated(page.GetKvs()[0], s)
	return e, from, page.GetHeader(), err
}

// Await waits until wanted accepts a requirement's status, for example Evaluated.Satisfied. With an error it returns the
// last status it read. Errors: Timeout, Canceled; NotFound, field "name", also after a deletion; as the service.
func Await(ctx context.Context, s coord.Service, name string, wanted func(Evaluated) bool) (Evaluated, *apiv1.Header, error) {
	const op = "requirements.Await"
	var last Evaluated
	var header *apiv1.Header
	for {
		e, from, h, err := get(ctx, s, name)
		if err != nil {
			return last, header, fault.Wrap(op, err)
		}
		last, header = e, h
		if !wanted(last) {
			err = last.follow(ctx, s, from, func(h *apiv1.Header) bool { header = h; return wanted(last) })
		}
		if wanted(last) {
			return last, header, nil
		}
		var compacted *coord.Compacted
		if err != nil && !errors.As(err, &compacted) {
			return last, header, fault.Wrap(op, err)
		}
	}
}

// follow keeps the status up to date until done accepts it, or until it must be
// read again: nil.
func (e *Evaluated) follow(ctx context.Context, service coord.Service, from int64, done func(*apiv1.Header) bool) error {
	stop := fault.New("requirements.Await", fault.Canceled, "the watch has delivered the last change needed")
	err := service.Watch(ctx, &apiv1.WatchKeysRequest{Key: StatusKey(e.Name), StartRevision: from}, func(r *apiv1.WatchKeysResponse) error {
		for _, ev := range r.GetEvents() {
			if ev.GetType() == apiv1.KeyEvent_DELETE {
				return stop
			}
			s, err := DecodeStatus(ev.GetKv().GetValue())
			switch {
			case err != nil || s.Of < e.Of: // foreign, or the late write of a deposed leader
				continue
			case s.Of > e.Of:
				return stop
			}
			if e.Status = s; done(r.GetHeader()) {
				return stop
			}
		}
		return nil
	})
	if errors.Is(err, stop) {
		return nil
	}
	return err
}

// List returns all requirements with their status, by name. Errors: those of the service.
func List(ctx context.Context, s coord.Service) ([]Evaluated, *apiv1.Header, error) {
	const op = "requirements.List"
	statuses := map[string]Status{}
	_, err := each(ctx, s, StatusPrefix, func(name string, kv *apiv1.KeyVal) {
		if s, err := DecodeStatus(kv.GetValue()); err == nil {
			statuses[name] = s
		}
	})
	if err != nil {
		return nil, nil, fault.Wrap(op, err)
	}
	var all []Evaluated
	h, err := each(ctx, s, Prefix, func(name string, kv *apiv1.KeyVal) {
		if e, err := evaluated(kv, statuses[name]); err == nil {
			all = append(all, e)
		}
	})
	return all, h, fault.Wrap(op, err)
}

// each reads the keys with a prefix page by page, each page at its own revision.
func each(ctx context.Context, s coord.Service, prefix string, take func(name string, kv *apiv1.KeyVal)) (*apiv1.Header, error) {
	for q := coord.Under(prefix).Request(256); ; {
		got, err := coord.Range(ctx, s, q)
		if err != nil {
			return nil, err
		}
		for _, kv := range got.GetKvs() {
			take(strings.TrimPrefix(string(kv.GetKey()), prefix), kv)
		}
		if q.Key = got.GetNext(); len(q.Key) == 0 {
			return got.GetHeader(), nil
		}
	}
}
