package consulapi

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Agent holds the parts of the agent plane. All are required.
type Agent struct {
	Registrar instances.Registrar
	Catalog   instances.Catalog
	// Limit runs before each registration.
	Limit func(context.Context) error
	// May checks that the caller may change a service, given as namespace/name.
	May func(ctx context.Context, service string) error
	// Address is that of a service without one, and of the node.
	Address string
	// Checks runs the checks by HTTP, TCP and gRPC.
	Checks Checker
}

// Checker runs checks of services by their ids, which are unique, and tells their results to Server.Checked.
type Checker interface {
	Validate(Probe) error
	Set(Probe) error
	Remove(id string)
}

// Probe is a check that a peer runs.
type Probe struct {
	ID    string
	Host  string // of the service
	Port  int
	Check instance.Check
	Local bool // the service is on this host: the check may lead to loopback
	TLS   bool // of a check by gRPC
	Head  bool // a check by HTTP asks for the header alone
}

// agentAPI serves the services of this peer. The clocks of their checks are here, the statuses in the records of
// instances.
type agentAPI struct {
	Agent
	*Server

	turns [64]chan struct{} // each taken during a change of an instance, which reads it first

	mu     sync.Mutex // guards what follows
	clocks map[string]*clock
	claims map[string]instance.Key // ids of checks that are being registered, to their instance
}

func newAgent(s *Server) *agentAPI {
	a := &agentAPI{Agent: *s.Config.Agent, Server: s, clocks: map[string]*clock{}, claims: map[string]instance.Key{}}
	for n := range a.turns {
		a.turns[n] = make(chan struct{}, 1)
	}
	return a
}

func (a *agentAPI) routes() []httpapi.Route {
	read, write := access.RoleReadOnly, access.RoleService
	return []httpapi.Route{
		a.route("GET /v1/agent/services", read, a.services, "filter"),
		a.route("GET /v1/agent/service/{id...}", read, a.service),
		a.route("PUT /v1/agent/service/register", write, a.register, "replace-existing-checks"),
		a.route("PUT /v1/agent/service/deregister/{id...}", write, a.deregister),
		a.route("PUT /v1/agent/service/maintenance/{id...}", write, a.maintain, "enable", "reason"),
		a.route("GET /v1/agent/checks", read, a.checks, "filter"),
		a.route("PUT /v1/agent/check/register", write, a.registerCheck),
		a.route("PUT /v1/agent/check/deregister/{id...}", write, a.deregisterCheck),
		a.route("PUT /v1/agent/check/{status}/{id...}", write, a.report, "note"),
	}
}

// done answers a change without a word, as Consul does.
func (a *agentAPI) done(r *request, err error) error {
	if err != nil {
		return err
	}
	a.header(r, 1)
	a.write(r, http.StatusOK, "text/plain; charset=utf-8", nil)
	return nil
}

// own returns the instances of this peer in the namespace of clients; with an id those of it, first the ones of this
// front, since others may give an id to several.
func (a *agentAPI) own(ctx context.Context, id string) (list []*instance.Instance, err error) {
	all, err := a.Catalog.List(ctx, instances.ListQuery{Namespace: instance.DefaultNamespace, Selector: instance.Selector{AnyStatus: true}})
	if err != nil {
		return nil, err
	}
	made := instanceID(id, a.Peer)
	for _, i := range all.Instances {
		switch {
		case i.Peer != a.Peer || id != "" && (i.ID != id && i.ID != made || i.Service == nodeService):
		case id != "" && idOf(i, recordOf(i)) != id:
		case id != "" && ours(i):
			list = slices.Insert(list, 0, i)
		default:
			list = append(list, i)
		}
	}
	return list, nil
}

// ours reports whether this front registered an instance.
func ours(i *instance.Instance) bool { return strings.HasPrefix(i.Spec.Note, noteMark) }

// one returns the service of this peer with an id.
func (a *agentAPI) one(ctx context.Context, id string) (*instance.Instance, error) {
	list, err := a.own(ctx, id)
	if err == nil && len(list) == 0 {
		err = fault.New("", fault.NotFound, "Unknown service ID %q. Ensure that the service ID is passed, not the service name.", id)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// at returns the instance of this peer with a key.
func (a *agentAPI) at(ctx context.Context, k instance.Key) (*instance.Instance, error) {
	got, err := a.Catalog.Discover(ctx, instance.Query{Name: k.Name(), Selector: instance.Selector{ID: k.ID, AnyStatus: true}})
	if err == nil && (len(got.Instances) == 0 || got.Instances[0].Peer != a.Peer) {
		err = fault.New("", fault.NotFound, "the service %s has ended at this peer", k.ID)
	}
	if err != nil {
		return nil, err
	}
	return got.Instances[0], nil
}

// changeable is one for a caller that may change it.
func (a *agentAPI) changeable(r *request, id string) (*instance.Instance, error) {
	i, err := a.one(r.Context(), id)
	if err == nil {
		err = a.allowed(r, i.Service)
	}
	return i, err
}

// alone runs a change of an instance while no other one of its service's id runs.
func (a *agentAPI) alone(ctx context.Context, id string, change func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	h := fnv.New32a()
	_, _ = h.Write([]byte(plainID(id, a.Peer)))
	turn := a.turns[h.Sum32()%uint32(len(a.turns))]
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return fault.As("consulapi", fault.Timeout, ctx.Err())
	}
	defer func() { <-turn }()
	return change(ctx)
}

func (a *agentAPI) services(r *request) error {
	list, err := a.own(r.Context(), "")
	if err != nil {
		return err
	}
	return a.render(r, 1, bytesOf(list), func() (any, error) {
		out := map[string]agentService{}
		for _, i := range list {
			if s := agentServiceOf(i); i.Service != nodeService && (out[s.ID].ID == "" || ours(i)) {
				out[s.ID] = s
			}
		}
		return filtered(r, out)
	})
}

func (a *agentAPI) service(r *request) error {
	i, err := a.one(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return a.answer(r, 1, agentServiceOf(i))
}

// isLocal reports whether an address is of this host.
func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// local reports whether a request came from this host.
func (r *request) local() bool {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return true
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return isLocal(host)
}

// register registers a service. Its checks are critical from the start, unless the client says otherwise.
func (a *agentAPI) register(r *request) error {
	if err := a.Limit(r.Context()); err != nil {
		return err
	}
	text, release, err := a.body(r, maxBody)
	if err != nil {
		return err
	}
	defer release()
	var d serviceDefinition
	if text, err = lenient(text); err == nil {
		err = decode(text, &d)
	}
	if err == nil {
		err = r.none(d.scope)
	}
	for _, c := range append(d.Checks, d.Check) {
		if err == nil && c != nil {
			err = r.none(c.scope)
		}
	}
	if err != nil {
		return err
	}
	d.ID = cmp.Or(d.ID, d.Name)
	enter := func(ctx context.Context) error { return a.enter(ctx, r, &d) }
	return a.done(r, a.alone(r.Context(), instanceID(d.ID, a.Peer), enter))
}

// enter registers a service in the place of the present one of its id. What it replaces ends when it stands.
func (a *agentAPI) enter(ctx context.Context, r *request, d *serviceDefinition) error {
	before, err := a.own(ctx, d.ID)
	if err != nil {
		return err
	}
	var same *instance.Instance
	if at := slices.IndexFunc(before, func(i *instance.Instance) bool { return i.Service == d.Name }); at >= 0 {
		same = before[at]
	}
	replace := r.has("replace-existing-checks") && r.values.Get("replace-existing-checks") != "false"
	reg, rec, err := d.registration(same, replace, a.Peer, a.Address)
	if err != nil {
		return err
	}
	if err := a.allowed(r, reg.Service); err != nil {
		return err
	}
	// An id has one service of this front at a peer.
	before = slices.DeleteFunc(before, func(i *instance.Instance) bool { return i == same || !ours(i) })
	for _, i := range before {
		if err := a.allowed(r, i.Service); err != nil {
			return err
		}
	}
	reg.Local, rec.Here = r.local(), r.local() && d.Address == ""
	if rec.override() != instance.StatusUp && same == nil {
		reg.Status = instance.StatusStarting // nobody finds it before its checks pass
	}
	if err := a.store(ctx, reg, rec, same); err != nil {
		return err
	}
	for _, i := range before {
		if _, err := a.Registrar.Deregister(ctx, i.Key); err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
	}
	return nil
}

// claim keeps the ids of a service's checks for it until its record stands. Errors: an id is that of another service,
// or this peer cannot run a check.
func (a *agentAPI) claim(reg *instance.Registration, rec *record) (release func(), err error) {
	for _, c := range rec.Checks {
		if c.Run != nil {
			if err := a.Checks.Validate(c.probe(reg.Spec, rec)); err != nil {
				return nil, err
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range rec.Checks {
		of := a.claims[c.ID]
		if t := a.clocks[c.ID]; t != nil {
			of = t.of
		}
		if of.ID != "" && of.ID != reg.ID {
			text := "is that of a check of the service %s: ids of checks are unique at a peer"
			return nil, fault.Invalidf("CheckID", c.ID, text, of.Service)
		}
	}
	for _, c := range rec.Checks {
		a.claims[c.ID] = reg.Key
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, c := range rec.Checks {
			delete(a.claims, c.ID)
		}
	}, nil
}

// probe returns what the peer of a service runs.
func (c *check) probe(of instance.Spec, rec *record) Probe {
	return Probe{ID: c.ID, Host: of.Host, Port: of.Port, Check: *c.Run, Local: isLocal(of.Host) || rec.Here, TLS: c.TLS, Head: c.Head}
}

func (a *agentAPI) allowed(r *request, service string) error {
	return a.May(r.Context(), instance.DefaultNamespace+"/"+service)
}

// store registers an instance with its record, and what its checks force upon it. Silence never ends it: this front
// sends the heartbeats.
func (a *agentAPI) store(ctx context.Context, reg instance.Registration, rec *record, before *instance.Instance) (err error) {
	if reg.Spec.Note, err = rec.note(); err != nil {
		return err
	}
	release, err := a.claim(&reg, rec)
	if err != nil {
		return err
	}
	defer release()
	reg.Spec.RemoveAfter, reg.Spec.UnhealthyAfter, reg.Spec.Lasting = instance.Never, instance.MaxTTL, false
	got, err := a.Registrar.Register(ctx, reg)
	if err != nil {
		return err
	}
	a.track(got.Key, got.Spec, rec)
	if want := rec.override(); want != instance.StatusUp || got.Override != instance.StatusUnknown || before != nil && before.Override != instance.StatusUnknown {
		_, err = a.Registrar.SetStatus(ctx, got.Key, want)
	}
	return err
}

// update changes the record of an instance of this peer. It stays the instance of who registered it.
func (a *agentAPI) update(ctx context.Context, k instance.Key, local bool, change func(*record) error) error {
	return a.alone(ctx, k.ID, func(ctx context.Context) error { return a.change(ctx, k, local, change) })
}

// change is update for who has the turn of the instance.
func (a *agentAPI) change(ctx context.Context, k instance.Key, local bool, change func(*record) error) error {
	i, err := a.at(ctx, k)
	if err != nil {
		return err
	}
	rec := recordOf(i)
	switch {
	case rec == nil:
		return fault.New("", fault.Invalid, "the service %q was not registered by the API of Consul: change it where it was", k.ID)
	case rec.broken != "":
		text := "a part of the record of the service %q does not pass (%s): register it again"
		return fault.New("", fault.Invalid, text, idOf(i, rec), rec.broken)
	}
	if err := change(rec); err != nil {
		return err
	}
	reg := instance.Registration{Key: i.Key, Spec: i.Spec, Local: local || isLocal(i.Spec.Host)}
	as := access.From(ctx)
	as.Name = strings.TrimPrefix(i.Principal, "@")
	return a.store(access.With(ctx, as), reg, rec, i)
}

func (a *agentAPI) deregister(r *request) error {
	i, err := a.changeable(r, r.PathValue("id"))
	if err != nil {
		return err
	}
	return a.done(r, a.alone(r.Context(), i.ID, func(ctx context.Context) error {
		if _, err := a.Registrar.Deregister(ctx, i.Key); err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
		a.track(i.Key, i.Spec, &record{})
		return nil
	}))
}

// maintain begins or ends the maintenance of a service.
func (a *agentAPI) maintain(r *request) error {
	return a.maintainOne(r, "service", func(r *request) (*instance.Instance, error) { return a.changeable(r, r.PathValue("id")) })
}

// maintainOne begins or ends the maintenance of an instance that its caller may change.
func (a *agentAPI) maintainOne(r *request, what string, find func(*request) (*instance.Instance, error)) error {
	enable := r.values.Get("enable")
	if enable != "true" && enable != "false" {
		return fault.Invalidf("enable", enable, "must be true or false")
	}
	i, err := find(r)
	if err != nil {
		return err
	}
	return a.done(r, a.update(r.Context(), i.Key, r.local(), func(rec *record) error {
		rec.Maintenance = nil
		if enable == "true" {
			reason := clean.Lines(cmp.Or(r.values.Get("reason"), "Maintenance mode is enabled for this "+what+", but no reason was provided. This is a default message."), maxOutput)
			rec.Maintenance = &reason
		}
		return nil
	}))
}

// drop takes a check away.
func (r *record) drop(id string) {
	r.Checks = slices.DeleteFunc(r.Checks, func(c *check) bool { return c.ID == id })
}

// force makes an instance what its record says, if a change of it stopped halfway.
func (a *agentAPI) force(ctx context.Context, k instance.Key) error {
	i, err := a.at(ctx, k)
	if err != nil || !ours(i) || i.Override != instance.StatusUnknown {
		return err
	}
	if want := recordOf(i).override(); want != instance.StatusUp {
		_, err = a.Registrar.SetStatus(ctx, k, want)
	}
	return err
}

// attend sends the heartbeats of services. It finds the checks of an earlier run of this peer, forces upon services
// what their records say, and forgets checks whose service has ended. Its error tells of records that do not pass.
func (a *agentAPI) attend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	list, err := a.own(ctx, "")
	if err != nil {
		return err
	}
	// An adopted instance came later, and takes no id of a check.
	slices.SortStableFunc(list, func(x, y *instance.Instance) int { return x.RegisteredAt.Compare(y.RegisteredAt) })
	known := map[string]bool{}
	var refs []instances.Ref
	for _, i := range list {
		rec := recordOf(i)
		if rec == nil {
			continue
		}
		if rec.broken != "" {
			err = cmp.Or(err, fmt.Errorf("%w: a part of the record of the service %s does not pass and is left out, so it is down: register it again (%s)", errFault, i.Key, rec.broken))
		}
		if rec.override() != instance.StatusUp && i.Override == instance.StatusUnknown {
			err = cmp.Or(err, a.alone(ctx, i.ID, func(ctx context.Context) error { return a.force(ctx, i.Key) }))
		}
		for _, c := range rec.Checks {
			known[c.ID] = true
			if _, ok := a.clockOf(c.ID); !ok {
				a.track(i.Key, i.Spec, rec)
			}
		}
		refs = append(refs, instances.Ref{Key: i.Key})
	}
	a.forget(func(id string, c *clock) bool { return !known[id] && a.claims[id].ID == "" })
	for part := range slices.Chunk(refs, instances.MaxBeats) {
		_, failed := a.Registrar.Heartbeat(ctx, part)
		err = cmp.Or(err, failed)
	}
	return err
}
