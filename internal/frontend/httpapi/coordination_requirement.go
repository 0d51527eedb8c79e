package httpapi

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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

// query converts the question of the body. Errors: Invalid.
func (b *requirementBody) query() (instance.Query, error) {
	q, err := dialect.Query(url.Values{"namespace": {b.Namespace}, "health": {b.Selector.Health}}, b.Service)
	if err != nil {
		return q, fault.In("selector", err)
	}
	s := &q.Selector
	s.ID, s.Zone, s.Version, s.Tags = b.Selector.ID, b.Selector.Zone, b.Selector.Version, b.Selector.Tags
	s.Environment, s.Dependency = b.Selector.Environment, b.Selector.Dependency
	_, err = instances.Question(q) // checks it
	return q, err
}

func fromQuery(least int, q instance.Query) requirementBody {
	s := &q.Selector
	b := requirementBody{Service: q.Service, Namespace: q.Namespace, Min: least, Selector: selectorBody{
		ID: s.ID, Zone: s.Zone, Version: s.Version, Tags: s.Tags, Environment: s.Environment, Dependency: s.Dependency,
	}}
	names := make([]string, len(s.Statuses))
	for i, status := range s.Statuses {
		names[i] = status.String()
	}
	if b.Selector.Health = strings.Join(names, ","); s.AnyStatus {
		b.Selector.Health = "any"
	}
	return b
}

func headerJSON(h *api.Header) json.RawMessage {
	text, err := transcode.JSON(h)
	if err != nil {
		panic("httpapi: " + err.Error()) // a header has numbers only
	}
	return text
}

// requirementAnswer is a requirement with its status.
type requirementAnswer struct {
	Header json.RawMessage `json:"header,omitempty"`
	Name   string          `json:"name"`
	requirementBody
	*statusBody
}

// statusBody is the status of a requirement.
type statusBody struct {
	State     requirements.State `json:"state"`
	Needed    int                `json:"needed"`
	Available int                `json:"available"`
	Revision  coord.Revision     `json:"revision"` // of the last change of State
	Problem   string             `json:"problem,omitempty"`
}

func fromEvaluated(s requirements.Evaluated) requirementAnswer {
	q, err := instances.ParseQuestion(s.Question)
	if err != nil && s.Problem == "" {
		s.Problem = fault.Message(err)
	}
	return requirementAnswer{
		Name: s.Name, requirementBody: fromQuery(s.Min, q),
		statusBody: &statusBody{s.State, s.Needed, s.Available, s.Revision, s.Problem},
	}
}

func (p *coordinationAPI) setRequirement(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	body := requirementBody{Namespace: instance.DefaultNamespace}
	text, err := readBody(w, r)
	if err != nil {
		return err
	}
	if err := input.Object(text, &body); err != nil {
		return err
	}
	q, err := body.query()
	if err != nil {
		return err
	}
	if body.Min < 0 || body.Min > math.MaxInt32 {
		return fault.Invalidf("min", body.Min, "must be at least 1")
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	name := r.PathValue("id")
	result, err := p.Calls.Execute(ctx, coord.CommandOf("", &api.SetRequirementRequest{Name: name, Min: uint32(body.Min), Query: q.Proto()}))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, requirementAnswer{Header: headerJSON(result.GetSetRequirement().GetHeader()), Name: name, requirementBody: fromQuery(body.Min, q)})
}

func (p *coordinationAPI) deleteRequirement(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	result, err := p.Calls.Execute(ctx, coord.CommandOf("", &api.DeleteRequirementRequest{Name: r.PathValue("id")}))
	if err != nil {
		return err
	}
	return writeMessage(w, http.StatusOK, result.GetDeleteRequirement(), 0)
}

func (p *coordinationAPI) listRequirements(ctx context.Context, w http.ResponseWriter, _ *http.Request) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	ctx, room := budget.Growing(ctx, p.answers, "httpapi")
	defer func() { _ = room.To(ctx, 0, 0) }()
	all, h, err := requirements.List(ctx, &paged{Service: p.Reader})
	if err != nil {
		return err
	}
	return writeList(w, `{"header":`+string(headerJSON(h))+`,"requirements":[`, all,
		func(e requirements.Evaluated) int { return len(e.Name) + len(e.Question) + len(e.Problem) + 256 },
		func(e requirements.Evaluated) []byte { return dialect.JSON(fromEvaluated(e)) }, "]}")
}

// paged takes room for each page of the group beside those before.
type paged struct {
	coord.Service
	read int // bytes
}

// Read implements coord.Service.
func (p *paged) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	const pageBytes = 2 << 20 // about as much as a page has
	if err := budget.Grow(ctx, p.read+pageBytes); err != nil {
		return nil, err
	}
	a, err := p.Service.Read(ctx, q)
	p.read += proto.Size(a)
	return a, err
}

// getRequirement answers the status at once or, with wait, when the requirement is satisfied or
// the time is over.
func (p *coordinationAPI) getRequirement(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "wait")
	if err != nil {
		return err
	}
	name, wait := r.PathValue("id"), time.Duration(0)
	if given := values.Get("wait"); given != "" {
		if wait, err = time.ParseDuration(given); err != nil || wait < 0 || wait > maxRequired {
			return fault.Invalidf("wait", input.Quote(given), "needs a duration such as 30s, at most %v", maxRequired)
		}
	}
	if wait == 0 {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return p.answerRequirement(ctx, w, name, judgedWithin, requirements.Evaluated.Evaluated)
	}
	release, err := p.waits.Take(ctx, "httpapi.getRequirement")
	if err != nil {
		return err
	}
	defer release()
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the bound on reading the request must not end the wait
	return p.answerRequirement(ctx, w, name, wait, requirements.Evaluated.Satisfied)
}

// answerRequirement waits for a wanted status, at most for the given time, and answers the
// status at the end.
func (p *coordinationAPI) answerRequirement(ctx context.Context, w http.ResponseWriter, name string, wait time.Duration, wanted func(requirements.Evaluated) bool) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	evaluated, h, err := requirements.Await(waiting, p.Reader, name, wanted)
	for fault.KindOf(err) == fault.Unavailable && err != nil && pause.For(waiting, waitAgain) {
		evaluated, h, err = requirements.Await(waiting, p.Reader, name, wanted)
	}
	if waiting.Err() != nil && ctx.Err() == nil && fault.KindOf(err) != fault.NotFound && err != nil {
		bounded, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		evaluated, h, err = requirements.Get(bounded, p.Reader, name)
	}
	if err != nil {
		return err
	}
	answer := fromEvaluated(evaluated)
	answer.Header = headerJSON(h)
	return writeJSON(w, http.StatusOK, answer)
}
