package machine_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// txn copies nothing and indexes nothing: each comparison and each read walks over every key.
func (m *model) txn(keys map[string]version, o *coord.Txn, owner string) (fault.Kind, bool) {
	m.text = ""
	if len(o.If)+len(o.Then)+len(o.Else) == 0 {
		return fault.Invalid, true
	}
	for _, c := range o.If {
		if c.Target == coord.LeaseOf && c.Operator > coord.NotEqual && c.Number != 0 || c.Target == coord.Holds && c.Operator != coord.Equal {
			return fault.Invalid, true
		}
	}
	for _, steps := range [][]coord.Step{o.Then, o.Else} {
		if kind, bad := contradiction(steps); bad {
			return kind, true
		}
	}
	steps, succeeded, failed := o.Then, true, 0
	for i, c := range o.If {
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
func contradiction(steps []coord.Step) (fault.Kind, bool) {
	for _, s := range steps {
		if s.Put != nil && own(s.Put.Key) {
			return fault.Conflict, true
		}
	}
	for i, s := range steps {
		for k, other := range steps {
			if s.Put != nil && other.Put != nil && i != k && s.Put.Key == other.Put.Key {
				return fault.Invalid, true
			}
			if s.Put != nil && other.Delete != nil && other.Delete.Contains(s.Put.Key) {
				return fault.Invalid, true
			}
		}
	}
	return 0, false
}

func (m *model) met(c coord.Compare) bool {
	if c.Target == coord.Holds {
		queue, held := m.queue(m.keys(), c.Lock)
		i := slices.IndexFunc(queue, func(v version) bool { return v.create == coord.Revision(c.Token) })
		return i >= 0 && i < held
	}
	any := false
	for key, v := range m.keys() {
		if c.Span.Contains(key) {
			any = true
			if !v.has(c) {
				return false
			}
		}
	}
	return any || c.Target != coord.Value && version{}.has(c)
}

func (v version) has(c coord.Compare) bool {
	order := 0
	switch c.Target {
	case coord.ModRevision:
		order = cmp.Compare(int64(v.mod), c.Number)
	case coord.CreateRevision:
		order = cmp.Compare(int64(v.create), c.Number)
	case coord.Version:
		order = cmp.Compare(v.version, c.Number)
	case coord.LeaseOf:
		order = cmp.Compare(int64(v.lease), c.Number)
	case coord.Value:
		order = strings.Compare(v.value, c.Value)
	}
	return []bool{order == 0, order != 0, order < 0, order > 0}[c.Operator]
}

// step changes keys, and returns the result as text.
func (m *model) step(keys map[string]version, s coord.Step, owner string) (line string, kind fault.Kind, refused bool) {
	switch {
	case s.Put != nil:
		prev, had := m.keys()[s.Put.Key]
		if prev.lock != "" {
			return "", fault.Conflict, true
		}
		if !had && (s.Put.KeepValue || s.Put.KeepLease) {
			return "", fault.NotFound, true
		}
		v := version{value: string(s.Put.Value), lease: s.Put.Lease}
		if s.Put.KeepValue {
			v.value = prev.value
		}
		if s.Put.KeepLease {
			v.lease = prev.lease
		}
		if kind, no := m.usable(v.lease, owner); v.lease != 0 && no {
			return "", kind, true
		}
		if v.lease == 0 {
			v.writer = owner
		}
		m.put(keys, s.Put.Key, v)
		line = "1:"
		if had && s.Prev {
			line += prev.show(s.Put.Key)
		}
		return line + "\n", 0, false
	case s.Delete != nil:
		n, shown := 0, ""
		for _, key := range sortedKeys(keys) {
			if v := keys[key]; s.Delete.Contains(key) {
				if v.lock != "" || own(key) {
					return "", fault.Conflict, true
				}
				n++
				delete(keys, key)
				if s.Prev {
					shown += v.show(key)
				}
			}
		}
		return fmt.Sprintf("%d:%s\n", n, shown), 0, false
	}
	return m.look(keys, s.Read)
}

func (m *model) look(keys map[string]version, r *coord.Read) (line string, kind fault.Kind, refused bool) {
	if r.At != 0 {
		if keys = m.states[r.At]; r.At > m.now {
			return "", fault.Invalid, true
		}
	}
	var found []string
	for _, key := range sortedKeys(keys) {
		v := keys[key]
		if r.Span.Contains(key) && v.mod >= r.MinMod && (r.MaxMod == 0 || v.mod <= r.MaxMod) &&
			v.create >= r.MinCreate && (r.MaxCreate == 0 || v.create <= r.MaxCreate) {
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
		found = found[:min(len(found), r.Limit)]
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
func showTxn(r coord.TxnResult) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Succeeded, r.Failed)
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "%d:", s.Count)
		for _, kv := range s.Keys {
			v := version{value: string(kv.Value), create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease}
			if kv.LockClaim != nil {
				v.lock = kv.LockClaim.Lock
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
