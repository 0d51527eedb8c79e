package machine_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// txn copies nothing and indexes nothing: each comparison and each read walks over every key.
func (m *model) txn(keys map[string]version, o *apiv1.TxnRequest, owner string) (fault.Kind, bool) {
	m.text = ""
	if len(o.Compare)+len(o.Then)+len(o.Else) == 0 {
		return fault.Invalid, true
	}
	for _, c := range o.Compare {
		if c.Target == apiv1.Compare_LEASE && c.Operator > apiv1.Compare_NOT_EQUAL && c.Number != 0 || c.Target == apiv1.Compare_HOLDS && c.Operator != apiv1.Compare_EQUAL {
			return fault.Invalid, true
		}
	}
	for _, steps := range [][]*apiv1.TxnStep{o.Then, o.Else} {
		if kind, bad := contradiction(steps); bad {
			return kind, true
		}
	}
	steps, succeeded, failed := o.Then, true, 0
	for i, c := range o.Compare {
		if !m.met(c) {
			steps, succeeded, failed = o.Else, false, i+1
			break
		}
	}
	text := fmt.Sprintln(succeeded, failed)
	for _, s := range steps {
		line, kind, refused := m.step(keys, s, owner)
		if refused {
			return kind, true
		}
		text += line
	}
	m.text = text
	return 0, false
}

// contradiction finds what no state allows in a branch.
func contradiction(steps []*apiv1.TxnStep) (fault.Kind, bool) {
	for _, s := range steps {
		if p := s.GetPut(); p != nil && own(string(p.Key)) {
			return fault.Conflict, true
		}
	}
	for i, s := range steps {
		for k, other := range steps {
			p, q := s.GetPut(), other.GetPut()
			if p != nil && q != nil && i != k && string(p.Key) == string(q.Key) {
				return fault.Invalid, true
			}
			if p != nil && other.GetDelete() != nil && spanned(other.GetDelete()).Contains(string(p.Key)) {
				return fault.Invalid, true
			}
		}
	}
	return 0, false
}

// spanned is the span of a comparison or a step.
func spanned(r interface {
	GetKey() []byte
	GetRangeEnd() []byte
}) coord.Span {
	if len(r.GetRangeEnd()) == 0 {
		return coord.Exactly(string(r.GetKey()))
	}
	return coord.SpanOf(r.GetKey(), r.GetRangeEnd())
}

func (m *model) met(c *apiv1.Compare) bool {
	if c.Target == apiv1.Compare_HOLDS {
		queue, held := m.queue(m.keys(), c.Lock)
		i := slices.IndexFunc(queue, func(v version) bool { return v.create == coord.Revision(c.FencingToken) })
		return i >= 0 && i < held
	}
	any := false
	for key, v := range m.keys() {
		if spanned(c).Contains(key) {
			any = true
			if !v.has(c) {
				return false
			}
		}
	}
	return any || c.Target != apiv1.Compare_VALUE && version{}.has(c)
}

func (v version) has(c *apiv1.Compare) bool {
	order := 0
	switch c.Target {
	case apiv1.Compare_MOD_REVISION:
		order = cmp.Compare(int64(v.mod), c.Number)
	case apiv1.Compare_CREATE_REVISION:
		order = cmp.Compare(int64(v.create), c.Number)
	case apiv1.Compare_VERSION:
		order = cmp.Compare(v.version, c.Number)
	case apiv1.Compare_LEASE:
		order = cmp.Compare(int64(v.lease), c.Number)
	case apiv1.Compare_VALUE:
		order = strings.Compare(v.value, string(c.Value))
	}
	return []bool{order == 0, order != 0, order < 0, order > 0}[c.Operator]
}

// step changes keys, and returns the result as text.
func (m *model) step(keys map[string]version, s *apiv1.TxnStep, owner string) (line string, kind fault.Kind, refused bool) {
	switch p, d := s.GetPut(), s.GetDelete(); {
	case p != nil:
		prev, had := m.keys()[string(p.Key)]
		if prev.lock != "" {
			return "", fault.Conflict, true
		}
		if !had && (p.KeepValue || p.KeepLease) {
			return "", fault.NotFound, true
		}
		v := version{value: string(p.Value), lease: coord.LeaseID(p.Lease)}
		if p.KeepValue {
			v.value = prev.value
		}
		if p.KeepLease {
			v.lease = prev.lease
		}
		if kind, no := m.usable(v.lease, owner); v.lease != 0 && no {
			return "", kind, true
		}
		if v.writer = owner; v.lease != 0 {
			v.writer = m.leases[v.lease].Owner
		}
		m.put(keys, string(p.Key), v)
		line = "1:"
		if had && p.PrevKv {
			line += prev.show(string(p.Key))
		}
		return line + "\n", 0, false
	case d != nil:
		n, shown := 0, ""
		for _, key := range sortedKeys(keys) {
			if v := keys[key]; spanned(d).Contains(key) {
				if v.lock != "" && len(d.RangeEnd) > 0 {
					continue
				}
				if v.lock != "" || own(key) {
					return "", fault.Conflict, true
				}
				n++
				delete(keys, key)
				if d.PrevKv {
					shown += v.show(key)
				}
			}
		}
		return fmt.Sprintf("%d:%s\n", n, shown), 0, false
	}
	return m.look(keys, s.GetRange())
}

func (m *model) look(keys map[string]version, r *apiv1.TxnRange) (line string, kind fault.Kind, refused bool) {
	if at := coord.Revision(r.Revision); at != 0 {
		if keys = m.states[at]; at > m.now {
			return "", fault.Invalid, true
		}
	}
	var found []string
	for _, key := range sortedKeys(keys) {
		v := keys[key]
		if spanned(r).Contains(key) && within(v.mod, r.MinModRevision, r.MaxModRevision) && within(v.create, r.MinCreateRevision, r.MaxCreateRevision) {
			found = append(found, key)
		}
	}
	slices.SortStableFunc(found, func(x, y string) int {
		if r.Descending {
			x, y = y, x
		}
		a, b := keys[x], keys[y]
		return []int{
			strings.Compare(x, y), cmp.Compare(a.version, b.version), cmp.Compare(a.create, b.create), cmp.Compare(a.mod, b.mod),
			strings.Compare(a.value, b.value),
		}[r.Order]
	})
	line = fmt.Sprintf("%d:", len(found))
	if r.Limit > 0 {
		found = found[:min(len(found), int(r.Limit))]
	}
	for _, key := range found {
		v := keys[key]
		if r.KeysOnly {
			v.value, v.lock = "", ""
		}
		if !r.CountOnly {
			line += v.show(key)
		}
	}
	return line + "\n", 0, false
}

func within(at coord.Revision, low, high int64) bool {
	return int64(at) >= low && (high == 0 || int64(at) <= high)
}

func sortedKeys(keys map[string]version) []string {
	var all []string
	for key := range keys {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

func (v version) show(key string) string {
	if v.lock != "" {
		v.value = "a claim"
	}
	return fmt.Sprintf(" %q=%q c%d m%d v%d l%d", key, v.value, v.create, v.mod, v.version, v.lease)
}

// showTxn is the text of a result.
func showTxn(r ops.TxnResult) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Succeeded, r.Failed)
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "%d:", s.Count)
		for _, kv := range s.Keys {
			v := version{value: string(kv.Value), create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease}
			if entry := new(coordv1.LockEntry); proto.Unmarshal(kv.Value, entry) == nil && entry.GetCount() > 0 {
				v.lock = kv.Key // the model knows no values of claims
			}
			b.WriteString(v.show(kv.Key))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// counts is the text without keys.
func counts(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i], _, _ = strings.Cut(line, ":")
	}
	return strings.Join(lines, "\n")
}
