package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxAnswer = 16 << 20        // bytes read from an answer
	callLimit = 2 * time.Minute // of a call, with its wait
	idleLimit = 5 * time.Second // of an unused connection
)

// REST is the HTTP API of one peer. It is safe for concurrent use. Calls but Watch end within two minutes.
type REST struct {
	base string
	http *http.Client
}

// At returns the API at host:port. A nil dial means the usual dialer. Close releases its
// connections.
func At(address string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *REST {
	return &REST{base: "http://" + address, http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 4, IdleConnTimeout: idleLimit}}}
}

// Close ends idle connections.
func (r *REST) Close() { r.http.CloseIdleConnections() }

// Registration is a registration in the form of the low-level design "Service Discovery".
// Durations are texts such as 2s.
type Registration struct {
	ID             string            `json:"id"`
	Host           string            `json:"host"`
	Port           int               `json:"port"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	HealthCheck    *Check            `json:"health_check,omitempty"`
	UnhealthyAfter string            `json:"unhealthy_after,omitempty"`
	RemoveAfter    string            `json:"remove_after,omitempty"`
	Offer          any               `json:"offer,omitempty"`
}

// Check tells a peer how to probe an application.
type Check struct {
	Type               string `json:"type"`
	Endpoint           string `json:"endpoint"`
	Interval           string `json:"interval"`
	Timeout            string `json:"timeout"`
	UnhealthyThreshold int    `json:"unhealthy_threshold"`
}

// Receipt is the answer to a registration.
type Receipt struct {
	ID        string `json:"instance_id"`
	Lease     string `json:"lease_id"`
	Committed bool   `json:"committed"` // the whole cluster knows
}

// Register registers an instance. With commit it fails with Unavailable and keeps nothing unless
// the group commits.
func (r *REST) Register(ctx context.Context, service string, i Registration, commit bool) (Receipt, error) {
	var got Receipt
	path := instances(service)
	if commit {
		path += "?require_commit=true"
	}
	_, err := r.call(ctx, http.MethodPost, path, i, &got)
	return got, err
}

// Deregister removes an instance. Errors: NotFound; Gone.
func (r *REST) Deregister(ctx context.Context, service, id string) error {
	_, err := r.call(ctx, http.MethodDelete, instances(service)+"/"+url.PathEscape(id), nil, nil)
	return err
}

// Heartbeat renews an instance by name, in the form of the SAP-044 Registry. Errors: NotFound;
// Gone.
func (r *REST) Heartbeat(ctx context.Context, service, id string) error {
	_, err := r.call(ctx, http.MethodPut, services(service)+"/"+url.PathEscape(id)+"/heartbeat", nil, nil)
	return err
}

func services(service string) string  { return "/v1/services/" + url.PathEscape(service) }
func instances(service string) string { return services(service) + "/instances" }

// Instance is one instance in an answer.
type Instance struct {
	ID       string         `json:"id"`
	Host     string         `json:"host"`
	Port     int            `json:"port"`
	Health   string         `json:"health"` // of /v1/services/{service}/instances
	Status   string         `json:"status"` // of SAP-044
	Metadata map[string]any `json:"metadata"`
}

// Address is host:port.
func (i Instance) Address() string { return net.JoinHostPort(i.Host, strconv.Itoa(i.Port)) }

// List is an answer, ordered by id.
type List struct {
	Instances []Instance
	Stale     bool // no contact to the group
}

// IDs returns the ids in the list.
func (l List) IDs() []string {
	ids := make([]string, len(l.Instances))
	for n, i := range l.Instances {
		ids[n] = i.ID
	}
	slices.Sort(ids)
	return ids
}

// Instances queries a service by /v1/services/{service}/instances: UP instances, or all instances.
func (r *REST) Instances(ctx context.Context, service string, all bool) (List, error) {
	var got struct {
		Instances []Instance `json:"instances"`
	}
	path := instances(service)
	if all {
		path += "?health=any"
	}
	h, err := r.call(ctx, http.MethodGet, path, nil, &got)
	return List{got.Instances, stale(h)}, err
}

// Service queries a service by SAP-044, in any status: one instance is an object, several are
// an array. An unknown service gives an empty list.
func (r *REST) Service(ctx context.Context, service string) (List, error) {
	var text json.RawMessage
	h, err := r.call(ctx, http.MethodGet, services(service), nil, &text)
	switch {
	case fault.KindOf(err) == fault.NotFound && err != nil:
		return List{Stale: stale(h)}, nil
	case err != nil:
		return List{}, err
	}
	if bytes.HasPrefix(text, []byte("{")) {
		text = slices.Concat([]byte("["), text, []byte("]"))
	}
	l := List{Stale: stale(h)}
	return l, fault.As("app.Service", fault.Internal, json.Unmarshal(text, &l.Instances))
}

func stale(h http.Header) bool { return h.Get("X-Blackhole-Stale") == "true" }

// Change is a message of a watch: a Reset with the present instances, or events.
type Change struct {
	Reset     bool
	Instances []Instance
	Events    []Event
}

// Event is a change of one instance.
type Event struct {
	Type     string   `json:"type"` // ADDED, MODIFIED or DELETED
	Instance Instance `json:"instance"`
	Revision uint64   `json:"revision"`
}

// Watch streams changes of the instances of a service, in any status, by server-sent events,
// until ctx ends, the stream ends, or send fails.
func (r *REST) Watch(ctx context.Context, service string, send func(Change) error) error {
	const op = "app.Watch"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+services(service)+"/watch?health=any", nil)
	if err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := r.http.Do(req)
	if err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fault.New(op, kind(resp.StatusCode), "%s", resp.Status)
	}
	lines, name := bufio.NewScanner(resp.Body), ""
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = event
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || name != "reset" && name != "change" {
			continue
		}
		c := Change{Reset: name == "reset"}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return fault.As(op, fault.Internal, err)
		}
		if err := send(c); err != nil {
			return err
		}
	}
	return fault.New(op, fault.Unavailable, "the stream ended: %v", lines.Err())
}

// Requirement asks for a number of instances of a service.
type Requirement struct {
	Service string `json:"service"`
	Min     int    `json:"min"`
}

// Standing is the status of a requirement.
type Standing struct {
	State     string `json:"state"` // satisfied or insufficient_nodes
	Needed    int    `json:"needed"`
	Available int    `json:"available"`
}

// Require sets a requirement.
func (r *REST) Require(ctx context.Context, name string, q Requirement) error {
	_, err := r.call(ctx, http.MethodPut, requirement(name), q, nil)
	return err
}

// Stands returns the status of a requirement: at once, or with wait once it is satisfied or the
// wait ends.
func (r *REST) Stands(ctx context.Context, name, wait string) (Standing, error) {
	path := requirement(name)
	if wait != "" {
		path += "?wait=" + url.QueryEscape(wait)
	}
	var got Standing
	_, err := r.call(ctx, http.MethodGet, path, nil, &got)
	return got, err
}

// DropRequirement removes a requirement.
func (r *REST) DropRequirement(ctx context.Context, name string) error {
	_, err := r.call(ctx, http.MethodDelete, requirement(name), nil, nil)
	return err
}

func requirement(name string) string { return "/v1/coordination/requirements/" + url.PathEscape(name) }

// call sends one request. A refusal has the kind of its status; a missing answer is Unavailable,
// or the kind of the context's error.
func (r *REST) call(ctx context.Context, method, path string, body, into any) (http.Header, error) {
	const op = "app.REST"
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fault.As(op, fault.Invalid, err)
		}
		text = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, text)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	resp, err := r.http.Do(req)
	switch {
	case ctx.Err() != nil:
		return nil, fault.New(op, fault.KindOf(ctx.Err()), "%s %s%s: %w", method, r.base, path, ctx.Err())
	case err != nil:
		return nil, fault.As(op, fault.Unavailable, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return resp.Header, fault.New(op, kind(resp.StatusCode), "%s %s%s: %s: %s", method, r.base, path, resp.Status, answer)
	}
	if into == nil {
		return resp.Header, nil
	}
	return resp.Header, fault.As(op, fault.Internal, json.Unmarshal(answer, into))
}

// kind maps a status code to a kind of error.
func kind(status int) fault.Kind {
	switch status {
	case http.StatusNotFound:
		return fault.NotFound
	case http.StatusConflict:
		return fault.Exists
	case http.StatusGone:
		return fault.Gone
	case http.StatusTooManyRequests:
		return fault.LimitReached
	case http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusGatewayTimeout:
		return fault.Timeout
	case http.StatusInternalServerError:
		return fault.Internal
	default:
		return fault.Invalid
	}
}
