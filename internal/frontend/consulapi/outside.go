package consulapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// nodeService is the service whose instances are the outside nodes: who may register it may change nodes.
const nodeService = "consul-node"

// maxNode bounds the name of a node in bytes.
const maxNode = 128

// outside is what a record keeps of an instance that no peer answers for: a node, or a service on one.
type outside struct {
	Node      string
	ID        string            `json:",omitempty"` // of the node
	Addresses map[string]string `json:",omitempty"` // of the node
}

// outsideOf reads the record of an instance that no peer answers for; nil: it is another one.
func outsideOf(i *instance.Instance) *record {
	if !isOutside(i) {
		return nil
	}
	if rec := recordOf(i); rec != nil && rec.Outside != nil {
		return rec
	}
	return nil
}

func isOutside(i *instance.Instance) bool { return i.Peer == directory.Outside }

// nodeEntry is what a node has besides its services: an outside one all, and a peer its own checks.
type nodeEntry struct {
	*instance.Instance
	*record
}

func (n nodeEntry) node() node {
	if n.Outside == nil {
		return nodeOf(n.Instance)
	}
	return node{
		ID: n.Outside.ID, Node: n.Outside.Node, Address: n.Spec.Host, Datacenter: Datacenter, TaggedAddresses: n.Outside.Addresses, Meta: n.Spec.Metadata,
		Locality: n.Locality, CreateIndex: n.Revision, ModifyIndex: n.Revision,
	}
}

// services keeps the nodes of a list for the request, and returns the other instances.
func (r *request) services(list []*instance.Instance) (rest []*instance.Instance) {
	r.nodes = map[string]nodeEntry{}
	for _, i := range list {
		rec := recordOf(i)
		switch {
		case i.Service != nodeService || rec == nil:
			rest = append(rest, i)
		case rec.Outside != nil:
			r.nodes[rec.Outside.Node] = nodeEntry{i, rec}
		case !isOutside(i):
			r.nodes[i.Peer] = nodeEntry{i, rec}
		}
	}
	return rest
}

// outsideKey is the key of a node, or of a service on one. Its id tells both, readable where an instance can have it so.
func outsideKey(node, service, id string) instance.Key {
	k := instance.Key{Namespace: instance.DefaultNamespace, Service: service, ID: directory.OutsideID + node}
	if id != "" {
		k.ID += ":" + id
	}
	if (instance.Key{Namespace: k.Namespace, Service: "any", ID: k.ID}).Validate() != nil || strings.Contains(node, ":") {
		h := fnv.New128a()
		_, _ = fmt.Fprintf(h, "%d %s%s", len(node), node, id)
		k.ID = fmt.Sprintf("%s:%x", directory.OutsideID, h.Sum(nil)) // no node has an empty name
	}
	return k
}

// catalogRegistration registers an outside node, a service on it, checks of both.
type catalogRegistration struct {
	ID, Node, Address, Datacenter string
	TaggedAddresses, NodeMeta     map[string]string
	Service                       json.RawMessage
	Check                         *outsideCheck
	Checks                        []*outsideCheck
	SkipNodeUpdate                bool
	Locality                      *locality
	scope
}

// outsideCheck is a check whose status its registrar tells.
type outsideCheck struct {
	Node, CheckID, Name, Status, Notes, Output, ServiceID, Type string
	Definition                                                  map[string]json.RawMessage
	scope
}

func (d *outsideCheck) check() (*check, error) {
	c := &check{
		ID: cmp.Or(d.CheckID, d.Name), Name: d.Name, Notes: d.Notes, Type: d.Type, Status: cmp.Or(d.Status, critical), Output: d.Output,
	}
	maps.DeleteFunc(d.Definition, func(_ string, v json.RawMessage) bool { return void(v) || string(v) == `"0s"` })
	for kind := range d.Definition {
		if c.Type == "" && slices.Contains([]string{"HTTP", "TCP", "UDP", "GRPC"}, kind) {
			c.Type = strings.ToLower(kind)
		}
	}
	if len(d.Definition) > 0 {
		c.Definition, _ = json.Marshal(d.Definition) // of what was JSON
	}
	return c, c.told()
}

// outsideService is a service in a registration.
type outsideService struct {
	Service string
	serviceDefinition
}

// registered checks a registration by itself.
func (d *catalogRegistration) registered(r *request) (service *outsideService, err error) {
	if d.Datacenter != "" && d.Datacenter != Datacenter {
		return nil, errDatacenter
	}
	if d.Node == "" {
		return nil, fault.Invalidf("Node", nil, "is missing: Must provide node")
	}
	if err := fault.Text("Node", d.Node, maxNode); err != nil {
		return nil, err
	}
	if d.Address == "" && !d.SkipNodeUpdate {
		return nil, fault.Invalidf("Address", nil, "is missing: Must provide address if SkipNodeUpdate is not set")
	}
	if d.Check != nil {
		d.Checks = append(d.Checks, d.Check)
	}
	scopes := []scope{d.scope}
	if len(d.Service) > 0 && !void(d.Service) {
		service = new(outsideService)
		text, err := lenient(d.Service)
		if err == nil {
			err = decode(text, service)
		}
		if err != nil {
			return nil, fault.In("Service", err)
		}
		if service.Name = service.Service; service.Name == "" {
			return nil, fault.Invalidf("Service.Service", nil, "is missing: Must provide service name")
		}
		service.ID = cmp.Or(service.ID, service.Name)
		scopes = append(scopes, service.scope)
	}
	for n, c := range d.Checks {
		if c == nil || c.Node != "" && c.Node != d.Node {
			return nil, fault.Invalidf(fmt.Sprintf("Checks[%d].Node", n), nil, "must be the node %q of the registration", d.Node)
		}
		scopes = append(scopes, c.scope)
	}
	for _, in := range scopes {
		if err := r.none(in); err != nil {
			return nil, err
		}
	}
	return service, nil
}

// registerOutside registers what no peer answers for.
func (a *agentAPI) registerOutside(r *request) error {
	if err := a.Limit(r.Context()); err != nil {
		return err
	}
	var d catalogRegistration
	if err := a.object(r, &d); err != nil {
		return err
	}
	service, err := d.registered(r)
	if err == nil {
		err = a.noPeer(r.Context(), d.Node)
	}
	if err != nil {
		return err
	}
	return a.rewrite(r, func(x *draft) error {
		node, err := x.get(outsideKey(d.Node, nodeService, ""))
		if err != nil {
			return err
		}
		if node.now == nil || !d.SkipNodeUpdate {
			spec := instance.Spec{Host: d.Address, Metadata: d.NodeMeta}
			if d.Address == "" {
				spec.Interfaces = map[string]string{"node": d.Node} // an instance has a host or an interface
			}
			node.set(spec, &record{Locality: d.Locality, Outside: &outside{Node: d.Node, ID: d.ID, Addresses: d.TaggedAddresses}})
		}
		if service != nil {
			if err := x.enter(service, d.Node, node.now.Spec.Host); err != nil {
				return err
			}
		}
		for n, c := range d.Checks {
			one, err := c.check()
			if err != nil {
				return fault.In(fmt.Sprintf("Checks[%d]", n), err)
			}
			of := node
			if c.ServiceID != "" {
				if of, err = x.serviceOf(d.Node, c.ServiceID); err != nil {
					return err
				}
			}
			if err := x.drop(d.Node, one.ID); err != nil {
				return err
			}
			of.rec.Checks = append(of.rec.Checks, one)
		}
		return nil
	})
}

// noPeer refuses the node of a peer, which registers its services itself.
func (a *agentAPI) noPeer(ctx context.Context, node string) error {
	all, err := a.Catalog.List(ctx, everything("", instance.Local))
	if err != nil {
		return err
	}
	if node == a.Peer || node == directory.Outside || slices.ContainsFunc(all.Instances, func(i *instance.Instance) bool { return i.Peer == node }) {
		return fault.Invalidf("Node", node, "is a peer, which answers for its own services: use the agent's API at that peer")
	}
	return nil
}

// everything selects all instances of clients; with an id, those of it.
func everything(id string, how instance.Consistency) instances.ListQuery {
	return instances.ListQuery{Namespace: instance.DefaultNamespace, Selector: instance.Selector{AnyStatus: true, ID: id}, Consistency: how}
}

// deregisterOutside ends a check, a service with its checks, or a node with all.
func (a *agentAPI) deregisterOutside(r *request) error {
	var d struct {
		Node, Datacenter, ServiceID, CheckID string
		scope
	}
	err := a.object(r, &d)
	if err == nil {
		_, err = (&catalogRegistration{Node: d.Node, Datacenter: d.Datacenter, SkipNodeUpdate: true, scope: d.scope}).registered(r)
	}
	if err == nil {
		err = a.noPeer(r.Context(), d.Node)
	}
	if err != nil {
		return err
	}
	return a.rewrite(r, func(x *draft) error {
		keys, err := x.keys(d.Node)
		if err != nil {
			return err
		}
		for _, k := range keys {
			e, err := x.get(k)
			switch {
			case err != nil:
				return err
			case e.now == nil:
			case d.ServiceID != "":
				if e.rec.ID == d.ServiceID {
					e.now = nil
				}
			case d.CheckID != "":
				e.rec.drop(d.CheckID)
			default:
				e.now = nil
			}
		}
		return nil
	})
}

// draft collects the changes of a request to entries that no peer answers for, for one transaction.
type draft struct {
	*agentAPI
	ctx     context.Context
	entries map[instance.Key]*drafted
	changed instance.Name // one of the services that it changes
}

// drafted is an entry before and after the changes.
type drafted struct {
	instance.Key
	mod    coord.Revision // 0: absent
	before []byte
	now    *instance.Instance // nil: absent
	rec    *record            // of now
}

// set gives an entry a description. Its checks stay.
func (e *drafted) set(spec instance.Spec, rec *record) {
	if e.now == nil {
		e.now = &instance.Instance{Key: e.Key, RegisteredAt: time.Now().UTC().Truncate(time.Millisecond)}
	} else {
		rec.Checks = e.rec.Checks
	}
	e.now.Spec, e.rec = spec, rec
}

func outsideName(k instance.Key) string {
	return directory.OutsidePrefix + k.Namespace + "/" + k.Service + "/" + k.ID
}

// get reads an entry.
func (x *draft) get(k instance.Key) (*drafted, error) {
	if e := x.entries[k]; e != nil {
		return e, nil
	}
	got, err := coord.Range(x.ctx, x.Plane, coord.Exactly(outsideName(k)).Request(0))
	if err != nil {
		return nil, err
	}
	e := &drafted{Key: k}
	for _, kv := range got.GetKvs() {
		e.mod, e.before = coord.Revision(kv.GetModRevision()), kv.GetValue()
		if i, err := instance.Unmarshal(kv.GetValue()); err == nil && i.Key == k {
			i.Peer = directory.Outside
			if e.rec = outsideOf(i); e.rec != nil {
				e.now = i
			}
		}
	}
	x.entries[k] = e
	return e, nil
}

// keys are the keys of all entries of a node.
func (x *draft) keys(node string) (keys []instance.Key, err error) {
	all, err := x.Catalog.List(x.ctx, everything("", instance.Linearizable))
	for _, i := range all.Instances {
		if rec := outsideOf(i); rec != nil && rec.Outside.Node == node {
			keys = append(keys, i.Key)
		}
	}
	return keys, err
}

// drop takes a check away from a node or the service that has it: its id is unique at the node.
func (x *draft) drop(node, id string) error {
	all, err := x.Catalog.List(x.ctx, everything("", instance.Local))
	for _, i := range all.Instances {
		if rec := outsideOf(i); rec != nil && rec.Outside.Node == node && rec.check(id) != nil {
			if _, err := x.get(i.Key); err != nil {
				return err
			}
		}
	}
	for _, e := range x.entries {
		if e.now != nil {
			e.rec.drop(id)
		}
	}
	return err
}

// serviceOf returns the entry of a service on a node.
func (x *draft) serviceOf(node, id string) (*drafted, error) {
	want := outsideKey(node, "", id).ID
	for k, e := range x.entries {
		if k.ID == want && e.now != nil {
			return e, nil
		}
	}
	all, err := x.Catalog.List(x.ctx, everything(want, instance.Linearizable))
	for _, i := range all.Instances {
		if e, err := x.get(i.Key); err != nil || e.now != nil {
			return e, err
		}
	}
	if err == nil {
		err = fault.Invalidf("ServiceID", id, "is that of no service on the node %q: register the service first", node)
	}
	return nil, err
}

// enter registers a service on a node, in the place of another one with its id.
func (x *draft) enter(d *outsideService, node, address string) error {
	reg, rec, err := d.registration(nil, true, "", address)
	if err != nil {
		return fault.In("Service", err)
	}
	rec.ID, rec.Outside = d.ID, &outside{Node: node}
	k := outsideKey(node, d.Name, d.ID)
	same, err := x.Catalog.List(x.ctx, everything(k.ID, instance.Local))
	if err != nil {
		return err
	}
	for _, i := range same.Instances {
		if i.Service != d.Name {
			e, err := x.get(i.Key)
			if err != nil {
				return err
			}
			if e.now != nil { // its checks go with it
				rec.Checks = e.rec.Checks
			}
			e.now = nil
		}
	}
	e, err := x.get(k)
	if err == nil {
		e.set(reg.Spec, rec)
	}
	return err
}

// steps returns what a draft changes, and what must not have changed meanwhile. The caller must have the right to each changed service.
func (x *draft) steps() (steps []*apiv1.TxnStep, guards []*apiv1.Compare, err error) {
	for _, k := range slices.SortedFunc(maps.Keys(x.entries), instance.Key.Compare) {
		e := x.entries[k]
		var value []byte
		if e.now != nil {
			if value, err = e.value(); err != nil {
				return nil, nil, err
			}
		}
		name := outsideName(k)
		guards = append(guards, coord.WhileAt(name, e.mod))
		if bytes.Equal(value, e.before) {
			continue
		}
		if err := x.May(x.ctx, k.Namespace+"/"+k.Service); err != nil {
			return nil, nil, err
		}
		if x.changed = k.Name(); value == nil {
			steps = append(steps, coord.Exactly(name).DeleteStep())
		} else {
			steps = append(steps, coord.PutStep(name, value, 0))
		}
	}
	return steps, guards, nil
}

// value is the entry, checked as a registration. Its status is the worst of its own checks.
func (e *drafted) value() (value []byte, err error) {
	slices.SortFunc(e.rec.Checks, func(a, b *check) int { return cmp.Compare(a.ID, b.ID) })
	if len(e.rec.Checks) > maxChecks {
		return nil, fault.Invalidf("Checks", nil, "must be at most %d of a node or service", maxChecks)
	}
	reg := instance.Registration{Key: e.Key, Spec: e.now.Spec}
	if reg.Spec.Note, err = e.rec.note(); err != nil {
		return nil, err
	}
	reg.Spec.RemoveAfter, reg.Spec.UnhealthyAfter = instance.Never, instance.MaxTTL
	if err := reg.Normalize(); err != nil {
		return nil, err
	}
	return (&instance.Instance{Key: reg.Key, Spec: reg.Spec, Status: e.rec.override(), RegisteredAt: e.now.RegisteredAt}).Marshal(), nil
}

// rewrite runs a change of outside entries on what they are, writes it, and waits until this peer shows it.
func (a *agentAPI) rewrite(r *request, change func(*draft) error) error {
	ctx, cancel := bounded(r)
	defer cancel()
	owner, err := a.Owner(ctx)
	if err != nil {
		return err
	}
	for range maxTries {
		x := &draft{agentAPI: a, ctx: ctx, entries: map[instance.Key]*drafted{}}
		if err := change(x); err != nil {
			return err
		}
		steps, guards, err := x.steps()
		if err != nil {
			return err
		}
		if len(steps) == 0 {
			return a.answer(r, 1, true)
		}
		got, err := a.Plane.Execute(ctx, coord.CommandOf(owner, &apiv1.TxnRequest{Compare: guards, Then: steps}))
		if err != nil {
			return err
		}
		if txn := got.GetTxn(); txn.GetSucceeded() {
			within, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			// Whoever asks this peer next finds it, if the peer follows the group.
			_, _ = a.Catalog.Await(within, instance.Query{Name: x.changed, Selector: instance.Selector{AnyStatus: true}}, uint64(txn.GetHeader().GetRevision())-1)
			return a.answer(r, 1, true)
		}
	}
	return errContended
}
