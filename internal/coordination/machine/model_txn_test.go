package machine_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// txn copies nothing and indexes nothing: each comparison and each read walks over every key. The path through all branches is
// known before the first step.
func (m *model) txn(keys map[string]version, r *apiv1.TxnRequest, owner string) (fault.Kind, bool) {
	o := &apiv1.TxnBranch{Compare: r.GetCompare(), Then: r.GetThen(), Else: r.GetElse()}
	m.text = ""
	if len(o.Compare)+len(o.Then)+len(o.Else) == 0 {
		return fault.Invalid, true
	}
	if _, _, kind, bad := contradictions(o); bad {
		return kind, true
	}
	path := m.path(o)
	failed := slices.IndexFunc(o.Compare, func(c *apiv1.Compare) bool { return !m.met(c) }) + 1
	text, kind, refused := m.walk(keys, o, &path, owner)
	if !refused {
		m.text = fmt.Sprintln(failed) + text
	}
	return kind, refused
}

// path says of a transaction, and of each that is executed within it, whether all comparisons hold.
func (m *model) path(o *apiv1.TxnBranch) []bool {
	path, steps := []bool{true}, o.GetThen()
	for _, c := range o.GetCompare() {
		if !m.met(c) {
			path[0], steps = false, o.GetElse()
		}
	}
	for _, s := range steps {
		if s.GetTxn() != nil {
			path = append(path, m.path(s.GetTxn())...)
		}
	}
	return path
}

// walk executes the steps along a path, and removes its beginning.
func (m *model) walk(keys map[string]version, o *apiv1.TxnBranch, path *[]bool, owner string) (text string, kind fault.Kind, refused bool) {
	met, steps := (*path)[0], o.GetThen()
	if *path = (*path)[1:]; !met {
		steps = o.GetElse()
	}
	text = fmt.Sprintln(met)
	for _, s := range steps {
		line := ""
		if s.GetTxn() != nil {
			line, kind, refused = m.walk(keys, s.GetTxn(), path, owner)
			line = "0:\n" + line
		} else {
			line, kind, refused = m.step(keys, s, owner)
			line += "false\n"
		}
		if refused {
			return "", kind, true
		}
		text += line
	}
	return text, 0, false
}

// contradictions finds what no state allows in any branch. Otherwise it returns what the steps put and delete.
func contradictions(o *apiv1.TxnBranch) (puts []string, deletes []coord.Span, kind fault.Kind, bad bool) {
	for _, c := range o.GetCompare() {
		if c.Target == apiv1.Compare_LEASE && c.Operator > apiv1.Compare_NOT_EQUAL && c.Number != 0 || c.Target == apiv1.Compare_HOLDS && c.Operator != apiv1.Compare_EQUAL {
			return nil, nil, fault.Invalid, true
		}
	}
	for _, steps := range [][]*apiv1.TxnStep{o.GetThen(), o.GetElse()} {
		p, d, kind, bad := contradiction(steps)
		if bad {
			return nil, nil, kind, true
		}
		puts, deletes = append(puts, p...), append(deletes, d...)
	}
	return puts, deletes, 0, false
}

// contradiction finds what no state allows in a branch.
func contradiction(steps []*apiv1.TxnStep) (puts []string, deletes []coord.Span, kind fault.Kind, bad bool) {
	type changes struct {
		puts    []string
		deletes []coord.Span
	}
	each := make([]changes, len(steps))
	for i, s := range steps {
		switch p, d := s.GetPut(), s.GetDelete(); {
		case p != nil && own(string(p.Key)):
			return nil, nil, fault.Conflict, true
		case p != nil:
			each[i].puts = []string{string(p.Key)}
		case d != nil:
			each[i].deletes = []coord.Span{spanned(d)}
		case s.GetTxn() != nil:
			if each[i].puts, each[i].deletes, kind, bad = contradictions(s.GetTxn()); bad {
				return nil, nil, kind, true
			}
		}
		puts, deletes = append(puts, each[i].puts...), append(deletes, each[i].deletes...)
	}
	for i := range each {
		for k, other := range each {
			for _, key := range each[i].puts {
				if i != k && (slices.Contains(other.puts, key) || slices.ContainsFunc(other.deletes, func(s coord.Span) bool { return s.Contains(key) })) {
					return nil, nil, fault.Invalid, true
				}
			}
		}
	}
	return puts, deletes, 0, false
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
	count := 0
	for _, key := range sortedKeys(keys) {
		v := keys[key]
		if !spanned(r).Contains(key) {
			continue
		}
		count++
		if within(v.mod, r.MinModRevision, r.MaxModRevision) && within(v.create, r.MinCreateRevision, r.MaxCreateRevision) {
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
	line = fmt.Sprintf("%d:", count)
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
	return fmt.Sprintln(r.Failed) + showSteps(r.Succeeded, r.Steps)
}

func showSteps(succeeded bool, steps []ops.StepResult) string {
	var b strings.Builder
	fmt.Fprintln(&b, succeeded)
	for _, s := range steps {
		fmt.Fprintf(&b, "%d:", s.Count)
		for _, kv := range s.Keys {
			v := version{value: string(kv.Value), create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease}
			if entry := new(coordv1.LockEntry); proto.Unmarshal(kv.Value, entry) == nil && entry.GetCount() > 0 {
				v.lock = kv.Key // the model knows no values of claims
			}
			b.WriteString(v.show(kv.Key))
		}
		b.WriteString("\n" + showSteps(s.Succeeded, s.Steps))
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
