package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Agent are the parts of the agent plane; Registrar and Catalog are required.
type Agent struct {
	Registrar instance.Registrar
	Catalog   instance.Catalog

	Census  func() map[instance.Status]int // how many instances of all namespaces there are; nil: not known
	Storage func() error                   // why the registry cannot be written to; nil: it always can
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

// named is plain with the field names of dialect B in errors.
func named(h func(*Server, http.ResponseWriter, *http.Request) error) func(*Server) http.Handler {
	return plain(func(s *Server, w http.ResponseWriter, r *http.Request) error {
		return dialect.Renamed(h(s, w, r))
	})
}

// registration reads a request to register: what its parameters and its origin add to the body.
// Nothing is read of who may not register, or not now.
func (s *Server) registration(w http.ResponseWriter, r *http.Request, parse func(body []byte, namespace string) (instance.Registration, error)) (instance.Registration, error) {
	var none instance.Registration
	if s.Limit != nil {
		if err := s.Limit(r); err != nil {
			return none, err
		}
	}
	values, err := input.Known(r.URL, "namespace", "strict", "require_commit")
	if err != nil {
		return none, parameterError{err}
	}
	strict, err := input.Truth(values, "strict")
	if err != nil {
		return none, parameterError{err}
	}
	commit, err := input.Truth(values, "require_commit")
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
	return reg, s.may(r, reg.Name())
}

// isLocal reports whether a request came from this host.
func isLocal(r *http.Request) bool {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// may refuses a caller that may not act for a service.
func (s *Server) may(r *http.Request, n instance.Name) error {
	if s.May == nil {
		return nil
	}
	return s.May(r.Context(), n.Namespace+"/"+n.Service)
}

// keyOf names the instance of a path, of which the namespace may be a parameter.
func keyOf(r *http.Request) (instance.Key, error) {
	values, err := input.Known(r.URL, "namespace")
	if err != nil {
		return instance.Key{}, parameterError{err}
	}
	k := instance.Key{Namespace: dialect.Namespace(values), Service: r.PathValue("service"), ID: r.PathValue("id")}
	return k, k.Validate()
}

// deregister removes an instance; both dialects have it.
func (s *Server) deregister(w http.ResponseWriter, r *http.Request) error {
	k, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := s.may(r, k.Name()); err != nil {
		return err
	}
	done, err := s.Agent.Registrar.Deregister(r.Context(), k)
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
	writeJSON(w, http.StatusOK, struct {
		Message string `json:"message"`
		At      string `json:"deregistered_at"`
	}{"Service '" + k.ID + "' deregistered successfully", dialect.Time(done.At)})
	return nil
}

// missed is an error of a kind in the words of the specifications.
func missed(err error, format string, args ...any) error {
	kind := fault.KindOf(err)
	e := fault.New("", kind, format, args...)
	if at := fault.ValueOf(err); kind == fault.Gone && at != nil {
		e.Field, e.Value = "id", at
	}
	return e
}

// prefersBody reports whether the client wants an answer with a body where it may be without
// (RFC 7240, section 4.2).
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
func (s *Server) beat(r *http.Request, ref instance.Ref) (instance.Beat, error) {
	beats, err := s.Agent.Registrar.Heartbeat(r.Context(), []instance.Ref{ref})
	switch {
	case err != nil:
		return instance.Beat{}, err
	case len(beats) != 1: // a bug of the registrar's
		return instance.Beat{}, fault.New("httpapi.beat", fault.Internal, "one lease was renewed with %d outcomes", len(beats))
	}
	return beats[0], beats[0].Err
}

// tell says how new an answer is.
func tell(h http.Header, index uint64, c instance.Contact) {
	h.Set("X-Blackhole-Index", strconv.FormatUint(index, 10))
	h.Set("X-Blackhole-Revision", strconv.FormatUint(c.Revision, 10))
	if c.Stale {
		h.Set("X-Blackhole-Stale", "true")
		h.Set("X-Blackhole-Age", strconv.FormatFloat(c.Age.Seconds(), 'f', 3, 64))
	}
}

// prometheusTargets is for Prometheus' HTTP service discovery. It keeps the targets that it has
// when it is given none but an error: so it is, rather than an empty list that may be so for lack
// of contact.
func (s *Server) prometheusTargets(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, append(dialect.SelectorParameters(), "service")...)
	if err != nil {
		return parameterError{err}
	}
	if values.Get("health") == "" { // what is down is to be seen as down
		values = withHealth(values)
	}
	result, err := s.selected(r, values)
	if err != nil && fault.KindOf(err) == fault.Invalid {
		return parameterError{err} // the service too is one
	}
	if err != nil {
		return err
	}
	if result.Stale && len(result.Instances) == 0 {
		return fault.New("httpapi.prometheusTargets", fault.Unavailable, "contact is lost: %s", result.Reason)
	}
	tell(w.Header(), result.Index, result.Contact)
	s.writeAppended(w, func(dst []byte) []byte { return dialect.AppendTargets(dst, result.Instances) })
	return nil
}

func withHealth(values url.Values) url.Values {
	if values == nil {
		values = url.Values{}
	}
	values.Set("health", "any")
	return values
}

// selected finds the instances of one service, or of all.
func (s *Server) selected(r *http.Request, values url.Values) (instance.Result, error) {
	q, err := dialect.Query(values, values.Get("service"))
	if err != nil {
		return instance.Result{}, err
	}
	if q.Service == "" {
		return s.Agent.Catalog.List(r.Context(), instance.ListQuery{Namespace: q.Namespace, Selector: q.Selector, Consistency: q.Consistency})
	}
	return s.Agent.Catalog.Discover(r.Context(), q)
}

// orClosing is the answer to who waits when the server ends.
func (s *Server) orClosing(err error) error {
	kind := fault.KindOf(err)
	if err != nil && s.closing.Err() != nil && (kind == fault.Canceled || kind == fault.Unavailable) {
		return &fault.Error{Op: "httpapi", Kind: fault.Unavailable, Err: errors.New("the peer is shutting down")}
	}
	return err
}
