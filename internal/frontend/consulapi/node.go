package consulapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// nodeRoutes are what a node tells of itself and of the others.
func (a *agentAPI) nodeRoutes() []httpapi.Route {
	read := access.RoleReadOnly
	return []httpapi.Route{
		a.route("GET /v1/agent/self", read, a.self),
		a.route("GET /v1/agent/version", read, a.version),
		a.route("GET /v1/agent/host", read, a.host),
		a.route("GET /v1/agent/metrics", read, a.metrics, "format"),
		a.route("PUT /v1/agent/maintenance", access.RoleService, a.maintainNode, "enable", "reason"),
		a.route("GET /v1/agent/members", read, a.members, "wan", "segment"),
		a.route("GET /v1/agent/health/service/id/{id...}", read, a.healthOfID, "format"),
		a.route("GET /v1/agent/health/service/name/{service}", read, a.healthOfName, "format"),
	}
}

// ownNode returns the instance of no service that stands for this node.
func (a *agentAPI) ownNode() *instance.Instance {
	return &instance.Instance{Peer: a.Peer, Spec: instance.Spec{Host: a.Address}}
}

func (a *agentAPI) self(r *request) error {
	return a.answer(r, 1, map[string]any{
		"Config": map[string]any{"Datacenter": Datacenter, "NodeName": a.Peer, "NodeID": a.Peer, "Server": false, "Version": Version, "Revision": ""},
		"Member": member{Name: a.Peer, Addr: a.Address, Tags: map[string]string{}, Status: 1},
		"Meta":   map[string]string{},
		"Stats":  map[string]any{},
	})
}

func (a *agentAPI) version(r *request) error {
	return a.answer(r, 1, map[string]string{"SHA": "", "BuildDate": "0001-01-01T00:00:00Z", "HumanVersion": Version, "FIPS": ""})
}

// host answers what this program knows of its machine. The rest is null, as in Consul where it cannot tell.
func (a *agentAPI) host(r *request) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return a.answer(r, 1, map[string]any{
		"Host": map[string]any{"hostname": name, "os": runtime.GOOS, "kernelArch": runtime.GOARCH}, "CollectionTime": time.Now().UnixNano(),
		"CPU": nil, "Disk": nil, "Memory": nil, "Errors": nil,
	})
}

// metrics answers the metrics of this peer. They have other names than Consul's.
func (a *agentAPI) metrics(r *request) error {
	if r.values.Get("format") != "prometheus" || a.Metrics == nil {
		return fault.Invalidf("format", r.values.Get("format"), "must be prometheus: a peer has metrics of its own, with other names than Consul's")
	}
	a.header(r, 1)
	a.Metrics.ServeHTTP(r.w, r.Request)
	return nil
}

func (a *agentAPI) ownKey() instance.Key {
	return instance.Key{Namespace: instance.DefaultNamespace, Service: nodeService, ID: instanceID("", a.Peer)}
}

// ownEntry returns the instance that stands for this node, with its own checks and its maintenance. It is made when there is something to keep.
func (a *agentAPI) ownEntry(r *request) (*instance.Instance, error) {
	if err := a.allowed(r, nodeService); err != nil {
		return nil, err
	}
	k := a.ownKey()
	i, err := a.at(r.Context(), k)
	if fault.KindOf(err) != fault.NotFound {
		return i, err
	}
	reg := instance.Registration{Key: k, Spec: instance.Spec{Host: a.Address}, Local: true}
	if err := a.alone(r.Context(), k.ID, func(ctx context.Context) error { return a.store(ctx, reg, &record{Here: r.local()}, nil) }); err != nil {
		return nil, err
	}
	return a.at(r.Context(), k)
}

// maintainNode begins or ends the maintenance of this node.
func (a *agentAPI) maintainNode(r *request) error { return a.maintainOne(r, "node", a.ownEntry) }

// member is a peer as Consul's gossip shows it. The status 1 is alive: the instances of others have ended.
type member struct {
	Name   string
	Addr   string
	Port   uint16
	Tags   map[string]string
	Status int
}

func (a *agentAPI) members(r *request) error {
	all, err := a.Catalog.List(r.Context(), instances.ListQuery{Namespace: instance.DefaultNamespace, Selector: instance.Selector{AnyStatus: true}})
	if err != nil {
		return err
	}
	return a.render(r, 1, len(all.Instances)<<8, func() (any, error) {
		out := []member{}
		for _, n := range a.nodesOf(r, slices.DeleteFunc(slices.Clone(all.Instances), isOutside)) {
			out = append(out, member{Name: n.Node, Addr: n.Address, Tags: map[string]string{"role": "node", "dc": Datacenter, "id": n.ID}, Status: 1})
		}
		return out, nil
	})
}

// nodesOf are this node, those of some instances, and the outside ones of the request that it selects.
func (a *agentAPI) nodesOf(r *request, list []*instance.Instance) []node {
	out := []node{nodeOf(a.ownNode())}
	for _, i := range list {
		if !isOutside(i) && !slices.ContainsFunc(out, func(n node) bool { return n.Node == i.Peer }) {
			out = append(out, nodeOf(i))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		if !slices.ContainsFunc(out, func(n node) bool { return n.Node == name }) {
			out = append(out, r.nodes[name].node())
		}
	}
	return slices.DeleteFunc(out, func(n node) bool { return !r.selectsNode(n) })
}

// serviceHealth is a service of this node with the worst status of its checks.
type serviceHealth struct {
	AggregatedStatus string
	Service          agentService
	Checks           []healthCheck
}

// codeOf is what a load balancer reads: 200, 429 or 503.
func codeOf(status string) int {
	switch status {
	case passing:
		return http.StatusOK
	case warning:
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

// healthOf counts the checks of the node too.
func (a *agentAPI) healthOf(ctx context.Context, i *instance.Instance) serviceHealth {
	out := serviceHealth{AggregatedStatus: passing, Service: agentServiceOf(i), Checks: checksOf(i)}
	if n, err := a.at(ctx, a.ownKey()); err == nil {
		out.Checks = append(out.Checks, checksOf(n)...)
	}
	for _, c := range out.Checks {
		if codeOf(c.Status) > codeOf(out.AggregatedStatus) {
			out.AggregatedStatus = c.Status
		}
	}
	return out
}

// balance answers a load balancer: a health as JSON or, with format=text, by its status alone.
func (a *agentAPI) balance(r *request, code int, status string, v any) error {
	if r.values.Get("format") == "text" {
		a.header(r, 1)
		a.write(r, code, "text/plain; charset=utf-8", []byte(status))
		return nil
	}
	return a.answerCode(r, code, 1, v)
}

func (a *agentAPI) healthOfID(r *request) error {
	list, err := a.own(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return a.balance(r, http.StatusNotFound, "ServiceIdNotFound", nil)
	}
	h := a.healthOf(r.Context(), list[0])
	return a.balance(r, codeOf(h.AggregatedStatus), h.AggregatedStatus, h)
}

func (a *agentAPI) healthOfName(r *request) error {
	list, err := a.own(r.Context(), "")
	if err != nil {
		return err
	}
	if err := r.take(bytesOf(list)); err != nil {
		return err
	}
	code, status, out := http.StatusNotFound, "ServiceNameNotFound", []serviceHealth{}
	for _, i := range list {
		if i.Service != r.PathValue("service") {
			continue
		}
		h := a.healthOf(r.Context(), i)
		if of := codeOf(h.AggregatedStatus); len(out) == 0 || of > code {
			code, status = of, h.AggregatedStatus
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(x, y serviceHealth) int { return cmp.Compare(x.Service.ID, y.Service.ID) })
	return a.balance(r, code, status, out)
}
