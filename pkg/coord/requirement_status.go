package coord

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// RequirementStatusPrefix is the prefix of status keys. Every client may write
// there; the evaluator corrects foreign values.
const RequirementStatusPrefix = "requirements-status/"

// RequirementState says whether a requirement is satisfied.
type RequirementState string

// The states of a requirement.
const (
	RequirementSatisfied    RequirementState = "satisfied"
	RequirementInsufficient RequirementState = "insufficient_nodes"
	RequirementPending      RequirementState = "pending" // not evaluated yet; never stored
)

// RequirementStatus is the result of evaluating a requirement. The evaluator at
// the group's leader stores it under RequirementStatusKey, so that every peer
// reads the same status, a watch wakes waiters at any peer, and a new leader
// continues from it.
type RequirementStatus struct {
	State     RequirementState `json:"state"`
	Needed    int              `json:"needed"`
	Available int              `json:"available"`
	// Revision of the change to State, as far as the evaluator saw it.
	Revision Revision `json:"revision"`
	// Of is the mod revision of the evaluated requirement. The status of an older
	// version counts as pending.
	Of Revision `json:"of"`
	// Problem explains why the evaluator cannot count, for example an unreadable
	// version range. The state is then insufficient.
	Problem string `json:"problem,omitempty"`
}

// EvaluatedRequirement is a requirement with its status.
type EvaluatedRequirement struct {
	Requirement
	RequirementStatus
}

// RequirementStatusKey is the key of a requirement's status.
func RequirementStatusKey(name string) string { return RequirementStatusPrefix + name }

// Satisfied reports whether enough instances are available.
func (s RequirementStatus) Satisfied() bool { return s.State == RequirementSatisfied }

// Evaluated reports whether an evaluator has seen the requirement.
func (s RequirementStatus) Evaluated() bool { return s.State != RequirementPending }

// Encode returns the value of a status key: JSON, for readers of the keys.
func (s RequirementStatus) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("coord: " + err.Error()) // impossible: numbers and text only
	}
	return b
}

// DecodeRequirementStatus reads the value of a status key. Errors: Invalid.
func DecodeRequirementStatus(b []byte) (RequirementStatus, error) {
	const op = "coord.DecodeRequirementStatus"
	var s RequirementStatus
	if err := json.Unmarshal(b, &s); err != nil {
		return RequirementStatus{}, fault.As(op, fault.Invalid, err)
	}
	if s.State != RequirementSatisfied && s.State != RequirementInsufficient {
		return RequirementStatus{}, fault.Wrap(op, fault.Invalidf("state", string(s.State), "must be %s or %s", RequirementSatisfied, RequirementInsufficient))
	}
	return s, nil
}

// evaluated joins a requirement with its status. The status of an older version
// of the requirement is pending.
func evaluated(kv *KeyValue, s RequirementStatus) (EvaluatedRequirement, error) {
	r, err := RequirementOf(kv)
	if err != nil {
		return EvaluatedRequirement{}, err
	}
	if s.Of != kv.ModRevision {
		s = RequirementStatus{State: RequirementPending, Needed: r.Min, Revision: kv.ModRevision, Of: kv.ModRevision}
	}
	return EvaluatedRequirement{r, s}, nil
}

// GetRequirement returns a requirement with its stored status, which follows the
// directory by one command. The read is linearizable. Errors: NotFound, field
// "name"; as the reader.
func GetRequirement(ctx context.Context, r Service, name string) (EvaluatedRequirement, Header, error) {
	e, _, h, err := getRequirement(ctx, r, name)
	return e, h, fault.Wrap("coord.GetRequirement", err)
}

// getRequirement also returns the revision for a watch of the status. The status
// is read first: a status of the requirement read later belongs to it.
func getRequirement(ctx context.Context, r Service, name string) (e EvaluatedRequirement, from Revision, h Header, err error) {
	page, _, err := Ops{r}.Range(ctx, Query{Span: Exactly(RequirementStatusKey(name))}, Linearizable)
	if err != nil {
		return e, 0, h, err
	}
	var s RequirementStatus
	if len(page.Keys) == 1 {
		s, _ = DecodeRequirementStatus(page.Keys[0].Value) // the evaluator replaces unreadable values
	}
	from = page.Revision + 1
	page, h, err = Ops{r}.Range(ctx, Query{Span: Exactly(RequirementKey(name))}, Linearizable)
	if err == nil && len(page.Keys) == 0 {
		err = &fault.Error{Kind: fault.NotFound, Field: "name", Value: name, Err: errors.New("no requirement has this name")}
	}
	if err != nil {
		return e, 0, h, err
	}
	e, err = evaluated(page.Keys[0], s)
	return e, from, h, err
}

// AwaitRequirement waits until wanted accepts a requirement's status, for
// example EvaluatedRequirement.Satisfied. With an error it returns the last
// status it read. Errors: Timeout, Canceled; NotFound, field "name", also after a
// deletion; as the reader.
func AwaitRequirement(ctx context.Context, r Service, name string, wanted func(EvaluatedRequirement) bool) (EvaluatedRequirement, Header, error) {
	const op = "coord.AwaitRequirement"
	var last EvaluatedRequirement
	var header Header
	for {
		e, from, h, err := getRequirement(ctx, r, name)
		if err != nil {
			return last, header, fault.Wrap(op, err)
		}
		last, header = e, h
		if !wanted(last) {
			err = last.follow(ctx, r, from, func(h Header) bool { header = h; return wanted(last) })
		}
		if wanted(last) {
			return last, header, nil
		}
		var compacted *Compacted
		if err != nil && !errors.As(err, &compacted) {
			return last, header, fault.Wrap(op, err)
		}
	}
}

// follow keeps the status up to date until done accepts it, or until it must be
// read again: nil.
func (r *EvaluatedRequirement) follow(ctx context.Context, reader Service, from Revision, done func(Header) bool) error {
	stop := fault.New("coord.AwaitRequirement", fault.Canceled, "the watch has delivered the last change needed")
	err := Ops{reader}.Events(ctx, Watch{Span: Exactly(RequirementStatusKey(r.Name)), From: from}, func(b Batch, h Header) error {
		for _, e := range b.Events {
			if e.Deletes() {
				return stop
			}
			s, err := DecodeRequirementStatus(e.KV.Value)
			switch {
			case err != nil || s.Of < r.Of: // foreign, or the late write of a deposed leader
				continue
			case s.Of > r.Of:
				return stop
			}
			if r.RequirementStatus = s; done(h) {
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

// ListRequirements returns all requirements with their status, by name. Errors:
// those of the reader.
func ListRequirements(ctx context.Context, r Service) ([]EvaluatedRequirement, Header, error) {
	const op = "coord.ListRequirements"
	statuses := map[string]RequirementStatus{}
	_, err := eachKey(ctx, r, Under(RequirementStatusPrefix), func(kv *KeyValue) {
		if s, err := DecodeRequirementStatus(kv.Value); err == nil {
			statuses[strings.TrimPrefix(kv.Key, RequirementStatusPrefix)] = s
		}
	})
	if err != nil {
		return nil, Header{}, fault.Wrap(op, err)
	}
	var all []EvaluatedRequirement
	h, err := eachKey(ctx, r, Under(RequirementsPrefix), func(kv *KeyValue) {
		if e, err := evaluated(kv, statuses[strings.TrimPrefix(kv.Key, RequirementsPrefix)]); err == nil {
			all = append(all, e)
		}
	})
	return all, h, fault.Wrap(op, err)
}

// eachKey reads a span page by page, each page at its own revision.
func eachKey(ctx context.Context, r Service, span Span, take func(*KeyValue)) (Header, error) {
	for {
		got, h, err := Ops{r}.Range(ctx, Query{Span: span, Limit: 256}, Linearizable)
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
