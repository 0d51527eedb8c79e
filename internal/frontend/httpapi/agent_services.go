package httpapi

import (
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of a page of services.
const (
	defaultPage = 100
	maxPage     = 1000
)

// registered is the answer to a registration in SAP-044.
type registered struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Status    string    `json:"status"`
	At        time.Time `json:"registered_at"`
	Lease     string    `json:"lease_id"`
	Interval  int64     `json:"heartbeat_interval"`
	Timeout   int64     `json:"heartbeat_timeout"`
	Committed bool      `json:"committed"`
	Revision  uint64    `json:"revision,omitempty"`
	Warnings  []string  `json:"warnings,omitempty"`
}

// registerService answers 201 for a new or known instance, and 202 before the cluster has
// committed it.
func (a *agentAPI) registerService(w http.ResponseWriter, r *http.Request) error {
	reg, err := a.registration(w, r, dialect.ParseService)
	if err != nil {
		return err
	}
	done, err := a.Registrar.Register(r.Context(), reg)
	if err != nil {
		return err
	}
	w.Header().Set("Location", location("/v1/services/"+done.Service+"/", done.Key))
	return writeJSON(w, committed(done, http.StatusCreated), registered{
		ID: done.ID, Name: done.Service, Version: done.Spec.Version, Status: dialect.ServiceStatus(done.Status),
		At: instances.ShownTime(done.RegisteredAt), Lease: done.Lease,
		Interval: max(seconds(done.Interval), 1), Timeout: seconds(done.TTL), Committed: done.Committed, Revision: revision(done), Warnings: done.Warnings,
	})
}

// heartbeat is the heartbeat by service and id.
func (a *agentAPI) heartbeat(w http.ResponseWriter, r *http.Request) error {
	k, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := a.may(r, k.Name()); err != nil {
		return err
	}
	beat, err := a.beat(r, instances.Ref{Key: k})
	switch kind := fault.KindOf(err); {
	case err != nil && kind == fault.NotFound:
		return notFound(k)
	case err != nil && kind == fault.Gone:
		return missed(err, "Service '%s' has been deregistered", k.ID)
	case err != nil:
		return err
	}
	if !prefersBody(w, r) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return writeJSON(w, http.StatusOK, struct {
		Status  string    `json:"status"`
		At      time.Time `json:"last_heartbeat"`
		Renewed bool      `json:"lease_renewed"`
		TTL     int64     `json:"ttl_remaining"`
	}{dialect.ServiceStatus(beat.Status), instances.ShownTime(beat.At), true, seconds(beat.TTL)})
}

// getServices returns the instances of a service: an object for one, and otherwise an array,
// which is empty if the filter matches none.
func (a *agentAPI) getServices(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "instance_id", "status", "namespace", "consistency")
	if err != nil {
		return parameterError{err}
	}
	q := instance.Query{Name: instance.Name{Namespace: dialect.Namespace(values), Service: r.PathValue("service")}}
	if q.Consistency, err = dialect.Consistency(values); err != nil {
		return parameterError{err}
	}
	if q.Selector, err = dialect.Statuses(values.Get("status")); err != nil {
		return parameterError{err}
	}
	q.ID = values.Get("instance_id")
	result, err := a.Catalog.Discover(r.Context(), q)
	if err != nil {
		return ofParameters(err)
	}
	if len(result.Instances) == 0 {
		if err := a.present(r, q); err != nil {
			return err
		}
	}
	tell(w.Header(), result.Index, result.Contact)
	if len(result.Instances) == 1 {
		a.writeService(w, result.Instances[0])
	} else {
		return a.writeServices(w, result.View, 0, len(result.Instances))
	}
	return nil
}

// present fails unless the service, or the instance with the given id, exists in any status.
func (a *agentAPI) present(r *http.Request, q instance.Query) error {
	id := q.ID
	q.Selector = instance.Selector{AnyStatus: true, ID: id}
	result, err := a.Catalog.Discover(r.Context(), q)
	switch {
	case err != nil || len(result.Instances) > 0:
		return err
	case id != "":
		return notFound(instance.Key{Service: q.Service, ID: id})
	default:
		return fault.New("", fault.NotFound, "No service with name '%s' found in registry", q.Service)
	}
}

// getService returns one instance, to which the Location of a registration points.
func (a *agentAPI) getService(w http.ResponseWriter, r *http.Request) error {
	i, result, err := a.one(r)
	if err != nil {
		return err
	}
	tell(w.Header(), result.Index, result.Contact)
	a.writeService(w, i)
	return nil
}

// listServices returns a page of the instances of all services.
func (a *agentAPI) listServices(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "status", "tag", "environment", "dependency", "limit", "offset", "namespace", "consistency")
	if err != nil {
		return parameterError{err}
	}
	q := instances.ListQuery{Namespace: dialect.Namespace(values)}
	if q.Selector, err = dialect.Statuses(values.Get("status")); err != nil {
		return parameterError{err}
	}
	q.Environment, q.Dependency = values.Get("environment"), values.Get("dependency")
	if tag := values.Get("tag"); tag != "" {
		q.Tags = []string{tag}
	}
	if q.Consistency, err = dialect.Consistency(values); err != nil {
		return parameterError{err}
	}
	from, limit, err := page(values)
	if err != nil {
		return parameterError{err}
	}
	result, err := a.Catalog.List(r.Context(), q)
	if err != nil {
		return ofParameters(err)
	}
	tell(w.Header(), result.Index, result.Contact)
	w.Header().Set("X-Total-Count", strconv.Itoa(len(result.Instances)))
	from = min(from, len(result.Instances))
	return a.writeServices(w, result.View, from, min(from+limit, len(result.Instances)))
}

// page reads the bounds of a page.
func page(values url.Values) (from, limit int, err error) {
	offset, err := input.Number(values, "offset")
	if err != nil {
		return 0, 0, err
	}
	n, err := input.Number(values, "limit")
	switch given := values.Get("limit"); {
	case given == "":
		n = defaultPage
	case err != nil || n < 1 || n > maxPage:
		return 0, 0, fault.Invalidf("limit", input.Quote(given), "must be a number from 1 to %d", maxPage)
	}
	return int(min(offset, math.MaxInt32)), int(n), nil
}

func (a *agentAPI) writeServices(w http.ResponseWriter, v *instance.View, from, to int) error {
	n := 0
	for _, i := range v.Instances[from:to] {
		n += i.Bytes()
	}
	release, err := reserve(w, n, 0)
	if err != nil {
		return err
	}
	defer release()
	body := dialect.AppendServices(make([]byte, 0, n), v, from, to, a.Catalog.LastBeat)
	writeReserved(w, http.StatusOK, append(body, '\n'), n)
	return nil
}

func (a *agentAPI) writeService(w http.ResponseWriter, i *instance.Instance) {
	write(w, http.StatusOK, append(dialect.AppendService(nil, i, a.Catalog.LastBeat), '\n'))
}
