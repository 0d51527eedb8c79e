package consulapi

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/instance"
)

// nodeRoutes are what a node tells of itself and of the others.
func (a *agentAPI) nodeRoutes() []httpapi.Route {
	read := access.RoleReadOnly
	return []httpapi.Route{
		a.route("GET /v1/agent/self", read, a.self),
		a.route("GET /v1/agent/version", read, a.version),
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
		for _, n := range a.nodesOf(all.Instances) {
			out = append(out, member{Name: n.Node, Addr: n.Address, Tags: map[string]string{"role": "node", "dc": Datacenter, "id": n.ID}, Status: 1})
		}
		return out, nil
	})
}

// nodesOf are this node, and those of some instances.
func (a *agentAPI) nodesOf(list []*instance.Instance) []node {
	out := []node{nodeOf(a.ownNode())}
	for _, i := range list {
		if !slices.ContainsFunc(out, func(n node) bool { return n.Node == i.Peer }) {
			out = append(out, nodeOf(i))
		}
	}
	return out
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

func healthOf(i *instance.Instance) serviceHealth {
	out := serviceHealth{AggregatedStatus: passing, Service: agentServiceOf(i), Checks: checksOf(i)}
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
	h := healthOf(list[0])
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
		h := healthOf(i)
		if of := codeOf(h.AggregatedStatus); len(out) == 0 || of > code {
			code, status = of, h.AggregatedStatus
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(x, y serviceHealth) int { return cmp.Compare(x.Service.ID, y.Service.ID) })
	return a.balance(r, code, status, out)
}
