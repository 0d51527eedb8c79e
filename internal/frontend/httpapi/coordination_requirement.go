package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Times of requests for requirements.
const (
	maxRequired  = time.Hour              // longest wait for a requirement
	judgedWithin = time.Second            // for the first evaluation of a new requirement
	waitAgain    = 250 * time.Millisecond // between attempts while the group cannot serve
)

// requirementBody is a requirement: at least Min matching instances of a service.
type requirementBody struct {
	Service   string       `json:"service"`
	Namespace string       `json:"namespace"` // empty means the default
	Min       int          `json:"min"`
	Selector  selectorBody `json:"selector"`
}

// selectorBody selects the instances that count.
type selectorBody struct {
	Health      string   `json:"health,omitempty"` // any, or a list; empty means UP
	ID          string   `json:"id,omitempty"`
	Zone        string   `json:"zone,omitempty"`
	Version     string   `json:"version,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Environment string   `json:"environment,omitempty"`
	Dependency  string   `json:"dependency,omitempty"`
}

// requirement converts the body. Errors: Invalid.
func (b *requirementBody) requirement(name string) (coord.Requirement, error) {
	q, err := dialect.Query(url.Values{"namespace": {b.Namespace}, "health": {b.Selector.Health}}, b.Service)
	if err != nil {
		return coord.Requirement{}, fault.In("selector", err)
	}
	s := &q.Selector
	s.ID, s.Zone, s.Version, s.Tags = b.Selector.ID, b.Selector.Zone, b.Selector.Version, b.Selector.Tags
	s.Environment, s.Dependency = b.Selector.Environment, b.Selector.Dependency
	question, err := q.Question()
	return coord.Requirement{Name: name, Min: b.Min, Question: question}, err
}

// fromRequirement converts a requirement. Errors: a selector of a later version.
func fromRequirement(r *coord.Requirement) (requirementBody, error) {
	q, err := instance.ParseQuestion(r.Question)
	s := &q.Selector
	b := requirementBody{Service: q.Service, Namespace: q.Namespace, Min: r.Min, Selector: selectorBody{
		ID: s.ID, Zone: s.Zone, Version: s.Version, Tags: s.Tags, Environment: s.Environment, Dependency: s.Dependency,
	}}
	names := make([]string, len(s.Statuses))
	for i, status := range s.Statuses {
		names[i] = status.String()
	}
	if b.Selector.Health = strings.Join(names, ","); s.AnyStatus {
		b.Selector.Health = "any"
	}
	return b, err
}

// requirementAnswer is a requirement with its status.
type requirementAnswer struct {
	Header *coord.Header `json:"header,omitempty"`
	Name   string        `json:"name"`
	requirementBody
	*statusBody
}

// statusBody is the status of a requirement.
type statusBody struct {
	State     coord.RequirementState `json:"state"`
	Needed    int                    `json:"needed"`
	Available int                    `json:"available"`
	Revision  coord.Revision         `json:"revision"` // of the last change of State
	Problem   string                 `json:"problem,omitempty"`
}

func fromEvaluated(s coord.EvaluatedRequirement) requirementAnswer {
	body, err := fromRequirement(&s.Requirement)
	if err != nil && s.Problem == "" {
		s.Problem = fault.Message(err)
	}
	return requirementAnswer{
		Name: s.Name, requirementBody: body,
		statusBody: &statusBody{s.State, s.Needed, s.Available, s.Revision, s.Problem},
	}
}

func (p *coordinationAPI) setRequirement(ctx context.Context, c call) error {
	body := requirementBody{Namespace: instance.DefaultNamespace}
	if err := decode(c, &body); err != nil {
		return err
	}
	r, err := body.requirement(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	_, h, err := p.do(ctx, c, &coord.SetRequirement{Requirement: r})
	if err != nil {
		return err
	}
	kept, err := fromRequirement(&r)
	if err != nil {
		return err
	}
	return writeJSON(c.w, http.StatusOK, requirementAnswer{Header: &h, Name: r.Name, requirementBody: kept})
}

func (p *coordinationAPI) deleteRequirement(ctx context.Context, c call) error {
	if _, _, err := p.do(ctx, c, &coord.DeleteRequirement{Name: c.r.PathValue("id")}); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *coordinationAPI) listRequirements(ctx context.Context, c call) error {
	all, h, err := coord.ListRequirements(ctx, p.Reader)
	if err != nil {
		return err
	}
	list := make([]requirementAnswer, len(all))
	for i, one := range all {
		list[i] = fromEvaluated(one)
	}
	return writeJSON(c.w, http.StatusOK, struct {
		Header       coord.Header        `json:"header"`
		Requirements []requirementAnswer `json:"requirements"`
	}{h, list})
}

// getRequirement answers the status at once or, with wait, when the requirement is satisfied or
// the time is over.
func (p *coordinationAPI) getRequirement(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "wait")
	if err != nil {
		return err
	}
	name, wait := c.r.PathValue("id"), time.Duration(0)
	if given := values.Get("wait"); given != "" {
		if wait, err = time.ParseDuration(given); err != nil || wait < 0 || wait > maxRequired {
			return fault.Invalidf("wait", input.Quote(given), "needs a duration such as 30s, at most %v", maxRequired)
		}
	}
	if wait == 0 {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return p.answerRequirement(ctx, c, name, judgedWithin, coord.EvaluatedRequirement.Evaluated)
	}
	release, err := p.waits.Take(ctx, "httpapi.getRequirement")
	if err != nil {
		return err
	}
	defer release()
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // the bound on reading the request must not end the wait
	return p.answerRequirement(ctx, c, name, wait, coord.EvaluatedRequirement.Satisfied)
}

// answerRequirement waits for a wanted status, at most for the given time, and answers the
// status at the end.
func (p *coordinationAPI) answerRequirement(ctx context.Context, c call, name string, wait time.Duration, wanted func(coord.EvaluatedRequirement) bool) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	evaluated, h, err := coord.AwaitRequirement(waiting, p.Reader, name, wanted)
	for fault.KindOf(err) == fault.Unavailable && err != nil && pauseFor(waiting, waitAgain) {
		evaluated, h, err = coord.AwaitRequirement(waiting, p.Reader, name, wanted)
	}
	if waiting.Err() != nil && ctx.Err() == nil && fault.KindOf(err) != fault.NotFound && err != nil {
		bounded, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		evaluated, h, err = coord.GetRequirement(bounded, p.Reader, name)
	}
	if err != nil {
		return err
	}
	answer := fromEvaluated(evaluated)
	answer.Header = &h
	return writeJSON(c.w, http.StatusOK, answer)
}

// pauseFor waits, and reports whether the context outlived the pause.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
