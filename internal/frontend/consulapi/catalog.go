package consulapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func (a *agentAPI) catalogRoutes() []httpapi.Route {
	of := func(path string, serve func(*request) error, more ...string) httpapi.Route {
		return a.route("GET /v1/"+path, access.RoleReadOnly, serve, append(more, "index", "wait", "near", "filter")...)
	}
	return []httpapi.Route{
		a.route("GET /v1/catalog/datacenters", access.RoleReadOnly, func(r *request) error { return a.answer(r, 1, []string{Datacenter}) }),
		of("catalog/nodes", func(r *request) error { return a.find(r, a.nodes) }),
		of("catalog/services", a.names),
		of("catalog/service/{service}", func(r *request) error { return a.find(r, each(catalogServiceOf)) }, "tag"),
		of("catalog/node/{node}", func(r *request) error { return a.find(r, a.node) }),
		of("catalog/node-services/{node}", func(r *request) error { return a.find(r, a.nodeServices) }),
		a.route("PUT /v1/catalog/register", access.RoleService, a.registerOutside),
		a.route("PUT /v1/catalog/deregister", access.RoleService, a.deregisterOutside),
		of("health/service/{service}", func(r *request) error { return a.find(r, each(serviceEntryOf)) }, "tag", "passing"),
		of("health/checks/{service}", func(r *request) error { return a.find(r, a.checksOfAll) }),
		of("health/node/{node}", func(r *request) error { return a.find(r, a.checksOfAll) }),
		of("health/state/{state}", func(r *request) error { return a.find(r, a.checksOfAll) }),
	}
}

// node is a peer in the JSON of Consul. Address is the address of the instance beside it.
type node struct {
	ID, Node, Address, Datacenter string
	TaggedAddresses, Meta         map[string]string
	Locality                      *locality `json:",omitempty"`
	CreateIndex, ModifyIndex      uint64
}

func nodeOf(i *instance.Instance) node {
	return node{
		ID: i.Peer, Node: i.Peer, Address: i.Spec.Host, Datacenter: Datacenter, TaggedAddresses: map[string]string{"lan": i.Spec.Host, "wan": i.Spec.Host},
		Meta: map[string]string{}, CreateIndex: 1, ModifyIndex: 1,
	}
}

// nodeOf is the node of an instance: its peer, or an outside one.
func (r *request) nodeOf(i *instance.Instance, rec *record) node {
	if rec == nil || rec.Outside == nil {
		return nodeOf(i)
	}
	if at, ok := r.nodes[rec.Outside.Node]; ok {
		return at.node()
	}
	return nodeEntry{i, rec}.node() // it is being deregistered
}

type weights struct{ Passing, Warning int }

// agentService is an instance as the agent of its node shows it.
type agentService struct {
	ID, Service       string
	Tags              []string
	Meta              map[string]string
	Port              int
	Address           string
	TaggedAddresses   map[string]address
	Weights           weights
	EnableTagOverride bool
	Datacenter        string `json:",omitempty"`
	CreateIndex       uint64
	ModifyIndex       uint64
	Locality          *locality `json:",omitempty"`
}

func agentServiceOf(i *instance.Instance) agentService { return agentServiceBy(i, recordOf(i)) }

// agentServiceBy is agentServiceOf for who has read the record.
func agentServiceBy(i *instance.Instance, rec *record) agentService {
	if rec == nil {
		rec = &record{ID: i.ID}
	}
	meta := map[string]string{}
	maps.Copy(meta, i.Spec.Metadata)
	addresses := rec.Addresses
	if addresses == nil {
		addresses = map[string]address{}
	}
	host := i.Spec.Host
	if rec.Blank {
		host = ""
	}
	return agentService{
		ID: idOf(i, rec), Service: i.Service, Tags: tagsOf(i, rec), Meta: meta, Port: i.Spec.Port, Address: host,
		TaggedAddresses: addresses, Weights: weights{i.Spec.Weight, max(rec.Warning, 1)}, EnableTagOverride: rec.Override, Datacenter: Datacenter,
		CreateIndex: max(i.Revision, 1), ModifyIndex: max(i.Revision, 1), Locality: rec.Locality,
	}
}

// catalogService is an instance in the catalog.
type catalogService struct {
	ID, Node, Address, Datacenter          string
	TaggedAddresses, NodeMeta              map[string]string
	ServiceID, ServiceName, ServiceAddress string
	ServiceTags                            []string
	ServiceMeta                            map[string]string
	ServicePort                            int
	ServiceTaggedAddresses                 map[string]address
	ServiceWeights                         weights
	ServiceEnableTagOverride               bool
	CreateIndex, ModifyIndex               uint64
	ServiceLocality                        *locality `json:",omitempty"`
}

func catalogServiceOf(r *request, i *instance.Instance) catalogService {
	rec := recordOf(i)
	s, n := agentServiceBy(i, rec), r.nodeOf(i, rec)
	return catalogService{
		n.ID, n.Node, n.Address, n.Datacenter, n.TaggedAddresses, n.Meta, s.ID, s.Service, s.Address, s.Tags, s.Meta, s.Port, s.TaggedAddresses, s.Weights,
		s.EnableTagOverride, s.CreateIndex, s.ModifyIndex, s.Locality,
	}
}

const noDefinition = "{}"

// healthCheck is a check in the JSON of Consul.
type healthCheck struct {
	Node, CheckID, Name, Status, Notes, Output, ServiceID, ServiceName, Type string
	ServiceTags                                                              []string
	Definition                                                               json.RawMessage
	CreateIndex, ModifyIndex                                                 uint64
}

// checksOf returns the checks of an instance; of one that another front end registered, with the status of the
// instance.
func checksOf(i *instance.Instance) []healthCheck { return checksBy(i, recordOf(i)) }

// checksBy is checksOf for who has read the record.
func checksBy(i *instance.Instance, rec *record) []healthCheck {
	if rec == nil {
		rec = &record{ID: i.ID}
		if i.Spec.Check != nil {
			rec.Checks = []*check{{ID: "service:" + i.ID, Name: "Service '" + i.Service + "' check", Type: strings.ToLower(string(i.Spec.Check.Type))}}
		}
	}
	out := []healthCheck{}
	id, service, at := idOf(i, rec), i.Service, i.Peer
	if rec.Outside != nil {
		at = rec.Outside.Node
	}
	own := service == nodeService && rec.ID == "" // it is of the node
	if own {
		id, service = "", ""
	}
	bad := false
	show := func(of, name, kind, status, notes, output string) {
		bad = bad || status == critical
		out = append(out, healthCheck{
			Node: at, CheckID: of, Name: name, Status: status, Notes: notes, Output: output, ServiceID: id, ServiceName: service, Type: kind,
			ServiceTags: tagsOf(i, rec), Definition: json.RawMessage(noDefinition), CreateIndex: max(i.Revision, 1), ModifyIndex: max(i.Revision, 1),
		})
	}
	for _, c := range rec.Checks {
		status, output := c.Status, c.Output
		if status == "" {
			if status = passing; i.Status != instance.StatusUp {
				status, output = critical, "the instance is "+i.Status.String()
			}
		}
		show(c.ID, c.Name, c.Type, status, c.Notes, output)
		if len(c.Definition) > 0 {
			out[len(out)-1].Definition = c.Definition
		}
	}
	if rec.Maintenance != nil && own {
		show("_node_maintenance", "Node Maintenance Mode", "maintenance", critical, *rec.Maintenance, "")
	} else if rec.Maintenance != nil {
		show("_service_maintenance:"+id, "Service Maintenance Mode", "maintenance", critical, *rec.Maintenance, "")
	}
	if rec.broken != "" {
		show("note:"+id, "Record of the service", "", critical, "", "a part of the record does not pass and is left out: register the service again")
	}
	if i.Status != instance.StatusUp && !bad && !own {
		show("status:"+id, "Status of the instance", "", critical, "", "the instance is "+i.Status.String())
	}
	return out
}

// nodeCheckOf is the check of a node: its peer lived at the last contact to the group, or its instances would have
// ended. Headers tell the contact.
func nodeCheckOf(i *instance.Instance) healthCheck {
	return healthCheck{
		Node: i.Peer, CheckID: nodeCheck, Name: "Serf Health Status", Status: passing, Output: "Agent alive at the last contact to the group", ServiceTags: []string{}, Definition: json.RawMessage(noDefinition), CreateIndex: 1, ModifyIndex: 1,
	}
}

// nodeChecksOf are the checks of the node of an instance.
func (r *request) nodeChecksOf(i *instance.Instance, rec *record) (all []healthCheck) {
	at := i.Peer
	if rec != nil && rec.Outside != nil {
		at = rec.Outside.Node
	} else {
		all = append(all, nodeCheckOf(i))
	}
	if n, ok := r.nodes[at]; ok {
		all = append(all, checksBy(n.Instance, n.record)...)
	}
	return all
}

type serviceEntry struct {
	Node    node
	Service agentService
	Checks  []healthCheck
}

func serviceEntryOf(r *request, i *instance.Instance) serviceEntry {
	rec := recordOf(i)
	s := agentServiceBy(i, rec)
	s.Datacenter = ""
	return serviceEntry{r.nodeOf(i, rec), s, append(r.nodeChecksOf(i, rec), checksBy(i, rec)...)}
}

// render makes the answer of selected instances. It applies the filter.
type render func(r *request, list []*instance.Instance) (any, error)

func each[T any](of func(*request, *instance.Instance) T) render {
	return func(r *request, list []*instance.Instance) (any, error) {
		out := make([]T, len(list))
		for n, i := range list {
			out[n] = of(r, i)
		}
		return filtered(r, out)
	}
}

// checksOfAll answers the checks of instances: of a node with its own one, and in a state. This node is there without
// services too.
func (a *agentAPI) checksOfAll(r *request, list []*instance.Instance) (any, error) {
	out := []healthCheck{}
	if r.PathValue("service") == "" {
		for _, n := range a.nodesOf(r, list) {
			if at, ok := r.nodes[n.Node]; ok {
				out = append(out, r.nodeChecksOf(at.Instance, at.record)...)
			} else {
				out = append(out, nodeCheckOf(&instance.Instance{Peer: n.Node}))
			}
		}
	}
	for _, i := range list {
		out = append(out, checksOf(i)...)
	}
	state, at := r.PathValue("state"), r.PathValue("node")
	return filtered(r, slices.DeleteFunc(out, func(c healthCheck) bool {
		return state != "" && state != "any" && c.Status != state || at != "" && c.Node != at
	}))
}

// nodes answers this peer, those that have instances, and outside nodes.
func (a *agentAPI) nodes(r *request, list []*instance.Instance) (any, error) {
	return filtered(r, a.nodesOf(r, list))
}

// nodeAt finds a node with its services, in the order of their ids; nil: there is none.
func (a *agentAPI) nodeAt(r *request, list []*instance.Instance) (of *node, services []agentService) {
	services = []agentService{}
	for _, n := range a.nodesOf(r, list) {
		if n.Node == r.PathValue("node") {
			of = &n
		}
	}
	for _, i := range list {
		if rec := recordOf(i); r.nodeOf(i, rec).Node == r.PathValue("node") {
			s := agentServiceBy(i, rec)
			s.Datacenter = "" // as Consul shows it here
			services = append(services, s)
		}
	}
	slices.SortFunc(services, func(x, y agentService) int { return cmp.Compare(x.ID, y.ID) })
	return of, services
}

// node answers a node with its services; null for one that is unknown.
func (a *agentAPI) node(r *request, list []*instance.Instance) (any, error) {
	of, all := a.nodeAt(r, list)
	services := map[string]agentService{}
	for _, s := range all {
		services[s.ID] = s
	}
	kept, err := filtered(r, services)
	if of == nil {
		return nil, err
	}
	return map[string]any{"Node": of, "Services": kept}, err
}

// nodeServices answers a node with a list of its services.
func (a *agentAPI) nodeServices(r *request, list []*instance.Instance) (any, error) {
	of, all := a.nodeAt(r, list)
	kept, err := filtered(r, all)
	return map[string]any{"Node": of, "Services": kept}, err
}

// selects reports whether the parameters of a request select an instance.
func (r *request) selects(i *instance.Instance) bool {
	rec := outsideOf(i)
	if r.has("node-meta") && !r.selectsNode(r.nodeOf(i, rec)) {
		return false
	}
	for _, tag := range r.values["tag"] {
		if tag != "" && !slices.ContainsFunc(i.Spec.Tags, func(t string) bool { return strings.EqualFold(t, tag) }) {
			return false
		}
	}
	if v := r.values.Get("passing"); r.has("passing") && v != "false" && v != "0" {
		if i.Status != instance.StatusUp {
			return false // one of its checks says so
		}
		return !slices.ContainsFunc(append(r.nodeChecksOf(i, rec), checksOf(i)...), func(c healthCheck) bool { return c.Status != passing })
	}
	return true
}

// selectsNode reports whether a request selects a node by its metadata. A peer has none.
func (r *request) selectsNode(n node) bool {
	return !slices.ContainsFunc(r.values["node-meta"], func(pair string) bool {
		key, value, _ := strings.Cut(pair, ":")
		has, ok := n.Meta[key]
		return key != "" && (!ok || has != value)
	})
}

// find answers instances of the service in the path, or without one of all services.
func (a *agentAPI) find(r *request, as render) error {
	if _, err := as(r, nil); err != nil { // before the client waits
		return err
	}
	service, every, how := r.PathValue("service"), instance.Selector{AnyStatus: true}, instance.Local
	if r.has("consistent") {
		how = instance.Linearizable
	}
	return a.follow(r, service, func(ctx context.Context) (now state, err error) {
		var found instance.Result
		if service == "" {
			found, err = a.Catalog.List(ctx, instances.ListQuery{Namespace: instance.DefaultNamespace, Selector: every, Consistency: how})
		} else {
			found, err = a.Catalog.Discover(ctx, instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: service}, Selector: every, Consistency: how})
		}
		if err != nil {
			return state{}, err
		}
		now = state{index: found.Index, revision: found.Revision}
		list := found.Instances
		if service == servers {
			voters, err := a.voters(ctx)
			if err != nil {
				return state{}, err
			}
			list = append(slices.Clone(list), voters...)
		}
		if service != "" {
			nodes, err := a.Catalog.Discover(ctx, instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: nodeService}, Selector: every})
			if err != nil {
				return state{}, err
			}
			if now.nodes = len(nodes.Instances) > 0; now.nodes { // what they are counts too
				now.index, list = max(now.index, nodes.Index), append(slices.Clone(list), nodes.Instances...)
			}
		}
		now.bytes, now.made = bytesOf(list), func() (any, error) { return a.shown(r, r.services(list), as) }
		return now, nil
	})
}

// namesOf answers the names of the services that have instances for the filter, with their tags.
func namesOf(r *request, list []*instance.Instance) (any, error) {
	kept, err := each(catalogServiceOf)(r, list)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, s := range kept.([]catalogService) {
		tags := append(append([]string{}, out[s.ServiceName]...), s.ServiceTags...)
		slices.Sort(tags)
		out[s.ServiceName] = slices.Compact(tags)
	}
	return out, nil
}

// names answers the names of services with their tags.
func (a *agentAPI) names(r *request) error {
	if r.values.Get("filter") != "" || r.has("node-meta") {
		return a.find(r, namesOf)
	}
	return a.follow(r, "", func(ctx context.Context) (state, error) {
		found, err := a.Catalog.Services(ctx, instance.DefaultNamespace)
		return state{index: found.Index, revision: found.Revision, bytes: len(found.Services) << 9, made: func() (any, error) {
			out := map[string][]string{}
			for _, s := range found.Services {
				out[s.Name] = append([]string{}, s.Tags...)
			}
			delete(out, nodeService)
			if _, ok := out[servers]; !ok {
				out[servers] = []string{}
			}
			return out, nil
		}}, err
	})
}

// shown selects and orders instances: near its own node those of this peer come first.
func (a *agentAPI) shown(r *request, list []*instance.Instance, as render) (any, error) {
	list = slices.DeleteFunc(list, func(i *instance.Instance) bool { return !r.selects(i) })
	switch r.values.Get("near") {
	case "":
	case "_agent", a.Peer:
		slices.SortStableFunc(list, func(x, y *instance.Instance) int {
			far := func(i *instance.Instance) int {
				if i.Peer == a.Peer {
					return 0
				}
				return 1
			}
			return cmp.Compare(far(x), far(y))
		})
	default:
		return nil, fault.Invalidf("near", r.values.Get("near"), "must be _agent: a peer does not know the distances of others")
	}
	return as(r, list)
}

// state is what the catalog has for a query.
type state struct {
	index    uint64
	revision uint64              // of the last change that the answer has
	bytes    int                 // that the answer takes until it is text
	made     func() (any, error) // the answer
	nodes    bool                // it changes with nodes too
}

// bytesOf is about what instances take on their way to an answer.
func bytesOf(list []*instance.Instance) (n int) {
	for _, i := range list {
		n += 2<<10 + 3*len(i.Spec.Note)
		for name, value := range i.Spec.Metadata {
			n += 2 * (len(name) + len(value))
		}
	}
	return n
}

// follow answers what read finds, and waits first for a change if the client knows the present state.
func (a *agentAPI) follow(r *request, service string, read func(context.Context) (state, error)) error {
	ctx, cancel := bounded(r)
	defer cancel()
	now, err := read(ctx)
	if after := uint64(r.index); err == nil && after > 0 && now.index <= after && after <= now.revision {
		release, full := a.watches.Take(r.Context(), "consulapi.follow")
		if full != nil {
			return full
		}
		defer release()
		// The request has arrived, so the bound on reading it must not end the wait.
		_ = http.NewResponseController(r.w).SetReadDeadline(time.Time{})
		waiting, cancel := context.WithTimeout(r.Context(), r.wait)
		defer cancel()
		q := instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: service}, Selector: instance.Selector{AnyStatus: true}}
		if now.nodes {
			q.Service = "" // all services, the nodes among them
		}
		err = a.Catalog.Watch(waiting, q, after, func(b instance.Batch) error {
			fresh, err := read(waiting)
			if err != nil {
				return err
			}
			now = fresh
			if b.Reset && now.index != after { // the catalog cannot tell the changes since
				now.index = max(now.index, b.Index)
				return errChanged
			}
			if now.index > after {
				return errChanged
			}
			return nil
		})
		switch {
		case access.Revoked(r.Context()) != nil:
			err = access.Revoked(r.Context())
		case errors.Is(err, errChanged):
			err = nil
		case waiting.Err() != nil:
			now.index, err = after, nil // nothing changed: the index stays the client's
		}
	}
	if err != nil {
		return err
	}
	if r.has("cached") { // every answer is from memory
		r.w.Header().Set("X-Cache", "HIT")
		r.w.Header().Set("Age", "0")
	}
	return a.render(r, int64(now.index), now.bytes, now.made)
}
