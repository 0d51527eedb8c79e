package simulation

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// instanceOf is an entry of one service; its value depends on the port alone.
func instanceOf(service, id string, port int) *apiv1.DirectoryEntry {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Instance{
		Namespace: "sim", ServiceName: service, Id: id, Port: int32(port),
	})
	if err != nil {
		panic(err)
	}
	return &apiv1.DirectoryEntry{Key: []byte(directory.Key("sim", service, id)), Value: value}
}

// publish registers instances under a lease for a while, some in conflict with other clients, and sometimes
// repeats messages of its earlier lives.
func publish(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	for range 1 + c.rng.IntN(5) {
		if !c.sendBatch(p, s) {
			break
		}
		c.compareDigest(p, s)
		p.sleep(c.between(0, c.idle))
	}
	c.release(p, s)
}

// sendBatch reports whether the lease is still usable.
func (c *client) sendBatch(p *proc, s *session) bool {
	c.generation++
	o := &apiv1.PublishInstancesRequest{LeaseId: int64(s.id), Generation: c.generation}
	for i := range 4 {
		e := instanceOf("web", fmt.Sprintf("%s-%d", c.name, i), c.rng.IntN(3))
		if i == 3 {
			e = instanceOf("shared", "one", c.rng.IntN(3))
			e.Adopt = c.chance(0.3)
		}
		switch c.rng.IntN(4) {
		case 0:
			o.Deletes = append(o.Deletes, e.Key)
		case 1, 2:
			o.Puts = append(o.Puts, e)
		}
	}
	if c.chance(0.3) || len(o.Puts)+len(o.Deletes) == 0 {
		o.Replace, o.RangeEnd = true, []byte{0}
	}
	if c.chance(0.1) && c.generation > 2 {
		o.Generation -= 2 // before the last accepted one
	}
	_, r, ok := c.do(p, o, patience)
	switch {
	case !ok || !s.lives(c.now):
		return false
	case r.Err != nil && (o.Generation == c.generation || fault.KindOf(r.Err) != fault.Conflict):
		c.breach("B2", "lease %d lives and cannot publish: %v", s.id, r.Err)
	case r.Err == nil:
		c.generation = o.Generation // its last lease had ended, and the older generation is the first of this one
		s.published = c.generation
	}
	return true
}

// compareDigest compares a member's view of the owner's entries with the owner's own (I5).
func (c *client) compareDigest(p *proc, s *session) {
	wrong, ok := c.get(p, func(m *machine.Machine) any {
		has := m.Publication(s.id)
		if has == nil {
			return ""
		}
		want := directory.Publication{Generation: has.Generation}
		page, _ := m.Range(machine.Query{Span: coord.Under(directory.Prefix)})
		for _, kv := range page.Keys {
			if l, _ := m.Lease(kv.Lease); l.Owner == c.name {
				want.Add(kv.Key, kv.Value)
			}
		}
		if *has != want {
			return fmt.Sprintf("%+v, not %+v", *has, want)
		}
		return ""
	}, time.Second)
	if ok && wrong != "" {
		c.breach("I5", "what %s has in the directory is said to be %s", c.name, wrong)
	}
}

// told compares the digest in a keepalive's answer with the entries at its sending (I5).
func (c *client) told(k machine.Renewal, generation uint64) {
	switch {
	case generation == 0:
	case k.Published == nil:
		c.breach("I5", "%s published generation %d under lease %d, and a keepalive knows nothing of it", c.name, generation, k.ID)
	case k.Published.Generation < generation:
		c.breach("I5", "%s published generation %d, and a keepalive knows of %d", c.name, generation, k.Published.Generation)
	}
}

// requireInstances sets or deletes a requirement.
func requireInstances(c *client, p *proc) {
	name := strings.ReplaceAll(c.anyOf("need", 3), "/", "-")
	if c.chance(0.4) {
		c.do(p, &apiv1.DeleteRequirementRequest{Name: name}, patience/16) // it may be above the level of the group
		return
	}
	_, r, ok := c.do(p, &apiv1.SetRequirementRequest{Name: name, Min: uint32(1 + c.rng.IntN(3))}, patience)
	if ok && r.Err != nil && c.id != 0 && !dissolved(r.Err) {
		c.breach("B2", "a requirement cannot be set: %v", r.Err)
	}
}
