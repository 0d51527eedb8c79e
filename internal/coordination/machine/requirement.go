package machine

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// setRequirement creates or replaces a requirement. An equal one makes no event.
func (c *call) setRequirement(m *Machine, req *apiv1.SetRequirementRequest) error {
	question, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.GetQuery())
	if err != nil {
		return fault.Invalidf("selector", nil, "cannot be kept: %v", err)
	}
	r := requirements.Requirement{Name: req.GetName(), Min: int(req.GetMin()), Question: question}
	if err := r.Validate(); err != nil {
		return err
	}
	key, value := requirements.Key(r.Name), r.Marshal()
	if err := m.limits.key("name", len(key)); err != nil {
		return err
	}
	if err := m.limits.value("selector", value); err != nil {
		return err
	}
	prev, had := m.tree.Get(key)
	response := &apiv1.SetRequirementResponse{Header: c.header}
	c.answer.Response = &coordv1.Result_SetRequirement{SetRequirement: response}
	if had && bytes.Equal(prev.Value, value) {
		return nil
	}
	if !had {
		set := m.requirements()
		if err := take("requirements", set.of[c.owner], 1, set.all, requirements.Max); err != nil {
			return err
		}
	}
	kv := &coord.KeyValue{Key: key, Value: value, Writer: c.owner}
	if err := feasible(m, []change{{key, kv}}, c.owner, applications); err != nil {
		return err
	}
	m.put(kv)
	response.Changed = 1
	return nil
}

func (c *call) deleteRequirement(m *Machine, r *apiv1.DeleteRequirementRequest) error {
	key := requirements.Key(r.GetName())
	if _, ok := m.tree.Get(key); !ok {
		return fault.Refused(fault.NotFound, "name", "is no requirement's")
	}
	m.remove(key)
	c.answer.Response = &coordv1.Result_DeleteRequirement{DeleteRequirement: &apiv1.DeleteRequirementResponse{Header: c.header}}
	return nil
}

// counted are the requirements, and those that each owner set last.
type counted struct {
	all uint64
	of  map[string]uint64
}

func (s *Keyspace) requirements() counted {
	n, span := counted{of: map[string]uint64{}}, coord.Under(requirements.Prefix)
	s.tree.Ascend(span.From, func(key string, kv *coord.KeyValue) bool {
		if !span.Contains(key) {
			return false
		}
		n.all++
		n.of[kv.Writer]++
		return true
	})
	return n
}
