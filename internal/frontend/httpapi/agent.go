package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Agent holds the parts of the agent plane. Registrar and Catalog are required.
type Agent struct {
	Registrar instances.Registrar
	Catalog   instances.Catalog

	Census func() map[instance.Status]int // counts the instances of all peers and namespaces; nil means unknown
	// LastChecks are the ends of the last checks that this peer made of an instance, newest first. Nil means that it checks none.
	LastChecks func(instance.Key) []instances.LastCheck
	// Problems say what is wrong with an instance of this peer. Nil means that nothing is known.
	Problems func(instance.Key) []string
	// Removed are the last ends of instances, the last one first. Nil means that none are known.
	Removed func(instance.Name) []instances.Removal
	Storage func() error // fails while the registry cannot be written; nil means always writable
}

func (a *Agent) census() map[instance.Status]int {
	if a.Census == nil {
		return nil
	}
	return a.Census()
}

func (a *Agent) storage() error {
	if a.Storage == nil {
		return nil
	}
	return a.Storage()
}

// agentAPI handles the routes of the agent plane.
type agentAPI struct {
	*shared
	Agent
	limit func(context.Context) error
	allow func(ctx context.Context, service string) error
}

func newAgentAPI(s *shared, c *Config) *agentAPI {
	a := &agentAPI{shared: s, Agent: *c.Agent, limit: c.Limit, allow: c.May}
	if a.limit == nil {
		a.limit = func(context.Context) error { return nil }
	}
	if a.allow == nil {
		a.allow = func(context.Context, string) error { return nil }
	}
	return a
}

// routes returns the routes of both dialects. They share paths, so "instances" and "watch" cannot be
// ids of instances.
func (a *agentAPI) routes() []route {
	return []route{
		// The low-level design "Service Discovery".
		{pattern: "POST /v1/services/{service}/instances", role: access.RoleService, asks: true, serve: handler(a.registerInstance)},
		{pattern: "GET /v1/services/{service}/instances", role: access.RoleReadOnly, asks: true, serve: handler(a.listInstances)},
		{pattern: "GET /v1/services/{service}/instances/{id}", role: access.RoleReadOnly, asks: true, serve: handler(a.getInstance)},
		{pattern: "DELETE /v1/services/{service}/instances/{id}", role: access.RoleService, asks: true, serve: handler(a.deregister)},
		{pattern: "PUT /v1/services/{service}/instances/{id}/status", role: access.RoleService, asks: true, serve: handler(a.setStatus)},
		{pattern: "GET /v1/services/{service}/watch", role: access.RoleReadOnly, asks: true, waits: true, serve: handler(a.watchInstances)},
		{pattern: "PUT /v1/leases/{lease}/renew", role: access.RoleService, serve: handler(a.renewLease)},
		// SAP-044 Registry.
		{pattern: "POST /v1/services", role: access.RoleService, asks: true, serve: inSAP044(a.registerService)},
		{pattern: "GET /v1/services", role: access.RoleReadOnly, asks: true, serve: inSAP044(a.listServices)},
		{pattern: "GET /v1/services/{service}", role: access.RoleReadOnly, asks: true, serve: inSAP044(a.getServices)},
		{pattern: "GET /v1/services/{service}/{id}", role: access.RoleReadOnly, asks: true, serve: inSAP044(a.getService)},
		{pattern: "DELETE /v1/services/{service}/{id}", role: access.RoleService, asks: true, serve: inSAP044(a.deregister)},
		{pattern: "PUT /v1/services/{service}/{id}/heartbeat", role: access.RoleService, asks: true, endpoint: "/heartbeat", serve: inSAP044(a.heartbeat)},
		{pattern: "GET /v1/removed", role: access.RoleReadOnly, asks: true, serve: handler(a.listRemoved)},
		// Prometheus.
		{pattern: "GET /v1/prometheus/sd", role: access.RoleReadOnly, asks: true, serve: handler(a.prometheusTargets)},
	}
}

// inSAP044 renames the fields in errors to those of SAP-044.
func inSAP044(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error { return dialect.Renamed(h(w, r)) }
}

// registration reads a request to register: its body, parameters and origin. The rate limit
// comes first, before anything is read.
func (a *agentAPI) registration(w http.ResponseWriter, r *http.Request, parse func(body []byte, namespace string) (instance.Registration, error)) (instance.Registration, error) {
	var none instance.Registration
	if err := a.limit(r.Context()); err != nil {
		return none, err
	}
	values, err := input.Known(r.URL, "namespace", "strict", "require_commit")
	if err != nil {
		return none, parameterError{err}
	}
	strict, err := input.ParseBool(values, "strict")
	if err != nil {
		return none, parameterError{err}
	}
	commit, err := input.ParseBool(values, "require_commit")
	if err != nil {
		return none, parameterError{err}
	}
	body, err := readBody(w, r)
	if err != nil {
		return none, err
	}
	reg, err := parse(body, values.Get("namespace"))
	if err != nil {
		return none, within("body", err)
	}
	reg.Strict, reg.RequireCommit, reg.Local = strict, commit, isLocal(r)
	return reg, a.may(r, reg.Name())
}

// isLocal reports whether a request came from this host.
func isLocal(r *http.Request) bool {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// may refuses a caller without permission to change a service.
func (a *agentAPI) may(r *http.Request, n instance.Name) error {
	return a.allow(r.Context(), n.Namespace+"/"+n.Service)
}

// keyOf reads the instance of a path; the namespace is a parameter.
func keyOf(r *http.Request) (instance.Key, error) {
	values, err := input.Known(r.URL, "namespace")
	if err != nil {
		return instance.Key{}, parameterError{err}
	}
	k := instance.Key{Namespace: dialect.Namespace(values), Service: r.PathValue("service"), ID: r.PathValue("id")}
	return k, k.Validate()
}

// deregister removes an instance, in both dialects.
func (a *agentAPI) deregister(w http.ResponseWriter, r *http.Request) error {
	k, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := a.may(r, k.Name()); err != nil {
		return err
	}
	done, err := a.Registrar.Deregister(r.Context(), k)
	if fault.KindOf(err) == fault.NotFound && err != nil {
		return missed(err, "Service '%s' not found (may already be deregistered)", k.ID)
	}
	if err != nil {
		return err
	}
	if !prefersBody(w, r) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return writeJSON(w, http.StatusOK, struct {
		Message string    `json:"message"`
		At      time.Time `json:"deregistered_at"`
	}{"Service '" + k.ID + "' deregistered successfully", instances.ShownTime(done.At)})
}

// missed replaces the text of an error by the words of the specifications.
func missed(err error, format string, args ...any) error {
	kind := fault.KindOf(err)
	e := fault.New("", kind, format, args...)
	if at := fault.ValueOf(err); kind == fault.Gone && at != nil {
		e.Field, e.Value = "id", at
	}
	return e
}

// prefersBody reports whether the client wants a body in an answer that may omit it (RFC 7240,
// section 4.2).
func prefersBody(w http.ResponseWriter, r *http.Request) bool {
	for _, line := range r.Header["Prefer"] {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			if strings.EqualFold(strings.TrimSpace(preference), "return=representation") {
				w.Header().Set("Preference-Applied", "return=representation")
				return true
			}
		}
	}
	return false
}

// beat renews one lease.
func (a *agentAPI) beat(r *http.Request, ref instances.Ref) (instances.Beat, error) {
	beats, err := a.Registrar.Heartbeat(r.Context(), []instances.Ref{ref})
	switch {
	case err != nil:
		return instances.Beat{}, err
	case len(beats) != 1: // a bug of the registrar
		return instances.Beat{}, fault.New("httpapi.beat", fault.Internal, "the registrar gave %d results for one heartbeat", len(beats))
	}
	return beats[0], beats[0].Err
}

// seconds rounds down to whole seconds, so that no client gets a promise of more time.
func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// tell sets the headers that describe the age of an answer.
func tell(h http.Header, index uint64, c instance.Contact) {
	h.Set("X-Blackhole-Index", strconv.FormatUint(index, 10))
	h.Set("X-Blackhole-Revision", strconv.FormatUint(c.Revision, 10))
	if c.Stale {
		h.Set("X-Blackhole-Stale", "true")
		h.Set("X-Blackhole-Age", strconv.FormatFloat(c.Age.Seconds(), 'f', 3, 64))
	}
}

// prometheusTargets serves the HTTP service discovery of Prometheus. Without contact to the group
// an empty list becomes an error, because Prometheus keeps its targets after an error.
func (a *agentAPI) prometheusTargets(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, append(dialect.SelectorParameters(), "service")...)
	if err != nil {
		return parameterError{err}
	}
	if values.Get("health") == "" { // Prometheus must see that an instance is down
		values = withHealth(values)
	}
	result, err := a.selected(r, values)
	if err != nil && fault.KindOf(err) == fault.Invalid {
		return parameterError{err} // the service is a parameter here
	}
	if err != nil {
		return err
	}
	if result.Stale && len(result.Instances) == 0 {
		return fault.New("httpapi.prometheusTargets", fault.Unavailable, "contact to the group is lost: %s", result.Reason)
	}
	tell(w.Header(), result.Index, result.Contact)
	return writeList(w, "[", result.Instances, (*instance.Instance).Bytes, func(i *instance.Instance) []byte {
		targets := dialect.JSON(dialect.Targets([]*instance.Instance{i}))
		return targets[1 : len(targets)-1]
	}, "]")
}

func withHealth(values url.Values) url.Values {
	if values == nil {
		values = url.Values{}
	}
	values.Set("health", "any")
	return values
}

// selected finds the instances of one service, or of all services.
func (a *agentAPI) selected(r *http.Request, values url.Values) (instance.Result, error) {
	q, err := dialect.Query(values, values.Get("service"))
	if err != nil {
		return instance.Result{}, err
	}
	if q.Service == "" {
		return a.Catalog.List(r.Context(), instances.ListQuery{Namespace: q.Namespace, Selector: q.Selector, Consistency: q.Consistency})
	}
	return a.Catalog.Discover(r.Context(), q)
}
