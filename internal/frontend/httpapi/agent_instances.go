package httpapi

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// registerInstance answers 201 for a new instance, 200 for a known instance, and 202 before the
// cluster has committed it.
func (a *agentAPI) registerInstance(w http.ResponseWriter, r *http.Request) error {
	reg, err := a.registration(w, r, func(body []byte, namespace string) (instance.Registration, error) {
		return dialect.Parse(body, instance.Name{Namespace: namespace, Service: r.PathValue("service")})
	})
	if err != nil {
		return err
	}
	done, err := a.Registrar.Register(r.Context(), reg)
	if err != nil {
		return err
	}
	w.Header().Set("Location", location("/v1/services/"+done.Service+"/instances/", done.Key))
	code := http.StatusOK
	if done.Created {
		code = http.StatusCreated
	}
	return writeJSON(w, committed(done, code), struct {
		ID        string   `json:"instance_id"`
		Lease     string   `json:"lease_id"`
		TTL       int64    `json:"lease_ttl"`
		Committed bool     `json:"committed"`
		Revision  uint64   `json:"revision,omitempty"`
		Warnings  []string `json:"warnings,omitempty"`
	}{done.ID, done.Lease, seconds(done.TTL), done.Committed, revision(done), done.Warnings})
}

// committed returns code for a committed registration, and otherwise 202.
func committed(done instances.Registered, code int) int {
	if !done.Committed {
		return http.StatusAccepted
	}
	return code
}

// revision returns the revision of a committed registration, and otherwise zero.
func revision(done instances.Registered) uint64 {
	if !done.Committed {
		return 0
	}
	return done.Revision
}

// location returns the path of an instance below a base path.
func location(below string, k instance.Key) string {
	at := below + url.PathEscape(k.ID)
	if k.Namespace != instance.DefaultNamespace {
		at += "?namespace=" + url.QueryEscape(k.Namespace)
	}
	return at
}

// renewLease is the heartbeat by lease.
func (a *agentAPI) renewLease(w http.ResponseWriter, r *http.Request) error {
	lease := r.PathValue("lease")
	beat, err := a.beat(r, instances.Ref{Lease: lease})
	switch kind := fault.KindOf(err); {
	case err != nil && kind == fault.NotFound:
		return missed(err, "Lease not found")
	case err != nil && kind == fault.Gone:
		return missed(err, "Lease expired, re-register required")
	case err != nil:
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Lease   string    `json:"lease_id"`
		TTL     int64     `json:"ttl"`
		Expires time.Time `json:"expires_at"`
	}{beat.Lease, seconds(beat.TTL), instances.ShownTime(beat.Expires)})
}

// setStatus overrides the status of an instance, or ends the override.
func (a *agentAPI) setStatus(w http.ResponseWriter, r *http.Request) error {
	k, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := a.may(r, k.Name()); err != nil {
		return err
	}
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	var q struct {
		Status string `json:"status"`
	}
	if err := input.Object(body, &q); err != nil {
		return err
	}
	status, err := instance.ParseStatus(q.Status)
	if err != nil {
		return err
	}
	i, err := a.Registrar.SetStatus(r.Context(), k, status)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return notFound(k)
	}
	if err != nil {
		return err
	}
	return a.writeDetail(w, r, i)
}

// writeDetail writes an instance. Operators also get the last checks.
func (a *agentAPI) writeDetail(w http.ResponseWriter, r *http.Request, i *instance.Instance) error {
	last, _ := a.Catalog.LastBeat(i.Key)
	d := instances.Detail(i, last)
	if a.LastChecks != nil && a.operator(r) {
		d.LastChecks = a.LastChecks(i.Key)
	}
	if a.Problems != nil {
		d.Problems = a.Problems(i.Key)
	}
	return writeJSON(w, http.StatusOK, d)
}

func notFound(k instance.Key) error {
	return fault.New("", fault.NotFound, "Service '%s' with ID '%s' not found", k.Service, k.ID)
}

// getInstance returns one instance in any status.
func (a *agentAPI) getInstance(w http.ResponseWriter, r *http.Request) error {
	i, result, err := a.one(r)
	if err != nil {
		return err
	}
	tell(w.Header(), result.Index, result.Contact)
	return a.writeDetail(w, r, i)
}

// one finds the instance of a path.
func (a *agentAPI) one(r *http.Request) (*instance.Instance, instance.Result, error) {
	values, err := input.Known(r.URL, "namespace", "consistency")
	if err != nil {
		return nil, instance.Result{}, parameterError{err}
	}
	consistency, err := dialect.Consistency(values)
	if err != nil {
		return nil, instance.Result{}, parameterError{err}
	}
	k := instance.Key{Namespace: dialect.Namespace(values), Service: r.PathValue("service"), ID: r.PathValue("id")}
	if err := k.Validate(); err != nil {
		return nil, instance.Result{}, err
	}
	result, err := a.Catalog.Discover(r.Context(), instance.Query{
		Name: k.Name(), Selector: instance.Selector{AnyStatus: true, ID: k.ID}, Consistency: consistency,
	})
	if err != nil {
		return nil, result, err
	}
	if len(result.Instances) == 0 {
		return nil, result, notFound(k)
	}
	return result.Instances[0], result, nil
}

// listInstances returns the instances of a service, by default the UP instances.
func (a *agentAPI) listInstances(w http.ResponseWriter, r *http.Request) error {
	q, _, err := readQuery(r)
	if err != nil {
		return err
	}
	result, err := a.Catalog.Discover(r.Context(), q)
	if err != nil {
		return ofParameters(err)
	}
	return writeInstances(w, q.Service, result)
}

// listRemoved returns the last ends of instances. Operators also get their last checks.
func (a *agentAPI) listRemoved(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "namespace", "service")
	if err != nil {
		return parameterError{err}
	}
	n := instance.Name{Namespace: dialect.Namespace(values), Service: values.Get("service")}
	if err := (instance.Name{Namespace: n.Namespace, Service: cmp.Or(n.Service, "any")}).Validate(); err != nil {
		return parameterError{err}
	}
	list := []instances.Removal{}
	if a.Removed != nil {
		list = append(list, a.Removed(n)...)
	}
	if !a.operator(r) {
		for at := range list {
			list[at].LastCheck = nil
		}
	}
	return writeList(w, `{"removed":[`, list, func(r instances.Removal) int { return r.Bytes() },
		func(r instances.Removal) []byte { return dialect.JSON(r) }, "]}")
}

// operator reports whether a caller may see what the checks of this peer found.
func (a *agentAPI) operator(r *http.Request) bool {
	return a.open || access.From(r.Context()).Role == access.RoleAdmin
}

// readQuery reads the selection of a request. It accepts the parameters in more besides.
func readQuery(r *http.Request, more ...string) (instance.Query, url.Values, error) {
	var values url.Values
	if r.URL.RawQuery != "" {
		var err error
		if values, err = input.Known(r.URL, append(dialect.SelectorParameters(), more...)...); err != nil {
			return instance.Query{}, nil, parameterError{err}
		}
	}
	q, err := dialect.Query(values, r.PathValue("service"))
	return q, values, ofParameters(err)
}

// writeInstances writes a result. All requests with the same view share one rendering, and views the renderings of their
// instances.
func writeInstances(w http.ResponseWriter, service string, result instance.Result) error {
	n := result.Bytes()
	release, err := reserve(w, n, sharedPatience)
	if err != nil {
		return err
	}
	defer release()
	render := func() []byte { return append(dialect.AppendList(nil, service, result.View), '\n') }
	var body []byte
	if len(result.Instances) == 0 { // several services may share an empty view
		body = render()
	} else {
		body = result.Form("httpapi", render)
	}
	tell(w.Header(), result.Index, result.Contact)
	writeReserved(w, http.StatusOK, body, n)
	return nil
}
