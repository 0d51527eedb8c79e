package machine_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// entry returns an entry whose value depends only on the port.
func entry(namespace, service, id string, port int) *apiv1.DirectoryEntry {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Instance{
		Namespace: namespace, ServiceName: service, Id: id, Host: "10.0.0.1", Port: int32(port),
	})
	if err != nil {
		panic(err)
	}
	return &apiv1.DirectoryEntry{Key: []byte(directory.Key(namespace, service, id)), Value: value}
}

// own reports whether a key is the directory's own to write.
func own(key string) bool {
	return strings.HasPrefix(key, "directory/") || strings.HasPrefix(key, "requirements/")
}

func (m *model) batch(keys map[string]version, o *apiv1.PublishInstancesRequest, owner string) (fault.Kind, bool) {
	if !m.sensible(o) {
		return fault.Invalid, true
	}
	lease := coord.LeaseID(o.LeaseId)
	if l, ok := m.leases[lease]; ok && l.Owner != owner {
		return fault.Forbidden, true
	}
	if kind, no := m.usable(lease, owner); no {
		return kind, true
	}
	present := m.begun[owner]
	if o.Generation < present.generation || o.Generation == present.generation && lease != present.lease {
		return fault.Conflict, true
	}
	m.begun[owner] = begun{o.Generation, lease}
	mine := func(v version) bool { return m.leases[v.lease].Owner == owner }
	stays := map[string]bool{}
	for _, e := range o.Puts {
		key := string(e.Key)
		stays[key] = true
		v, ok := m.keys()[key]
		last, went := m.gone[key]
		switch since := known(e, m.now); {
		case ok && !mine(v) && v.principal != "" && v.principal != e.Principal:
			m.foreign = append(m.foreign, key)
		case !e.Adopt && ok && !mine(v) && since <= m.since[key]:
			m.foreign = append(m.foreign, key)
		case !e.Adopt && went && last.owner != owner && since < last.at:
			m.foreign = append(m.foreign, key)
		case !ok || v.value != string(e.Value) || v.lease != lease || v.principal != e.Principal:
			m.put(keys, key, version{value: string(e.Value), lease: lease, principal: e.Principal})
		}
	}
	slices.Sort(m.foreign)
	for key, v := range m.keys() {
		replaced := o.Replace && coord.SpanOf(o.Key, o.RangeEnd).Contains(key) && !stays[key]
		if strings.HasPrefix(key, "directory/") && mine(v) && (replaced || slices.ContainsFunc(o.Deletes, func(b []byte) bool { return string(b) == key })) {
			delete(keys, key)
			m.gone[key] = gone{m.now + 1, owner}
		}
	}
	return 0, false
}

func known(e *apiv1.DirectoryEntry, now coord.Revision) coord.Revision {
	if since := coord.Revision(e.Since); since <= now {
		return since
	}
	return 0
}

// stamp sets the Since of each entry put, and drops those of deleted entries.
func (m *model) stamp(cmd *coordv1.Command, refused bool, before coord.Revision) {
	keys := m.keys()
	maps.DeleteFunc(m.since, func(key string, _ coord.Revision) bool { return keys[key].version == 0 })
	maps.DeleteFunc(m.gone, func(key string, _ gone) bool { return keys[key].version > 0 })
	o := cmd.GetPublishInstances()
	if o == nil || refused {
		return
	}
	var kept []coord.Revision
	for i, e := range o.Puts {
		key := string(e.Key)
		if kept = append(kept, 0); slices.Contains(m.foreign, key) {
			continue
		}
		since := known(e, before)
		if e.Adopt {
			since = m.now
		}
		m.since[key] = max(m.since[key], since)
		kept[i] = m.since[key]
	}
	m.kept = kept
}

// sensible reports whether a batch is well formed.
func (m *model) sensible(o *apiv1.PublishInstancesRequest) bool {
	named := map[string]bool{}
	for _, e := range o.Puts {
		if names := strings.Split(string(e.Key), "/"); e.Since < 0 || len(names) != 4 || names[0] != "directory" || names[3] == "" {
			return false
		}
		if o.Replace && !coord.SpanOf(o.Key, o.RangeEnd).Contains(string(e.Key)) {
			return false
		}
		named[string(e.Key)] = true
	}
	for _, key := range o.Deletes {
		named[string(key)] = true
	}
	n := len(o.Puts) + len(o.Deletes)
	return o.Generation > 0 && (n > 0 || o.Replace) && len(named) == n
}

func (m *model) set(keys map[string]version, r *apiv1.SetRequirementRequest, owner string) (fault.Kind, bool) {
	if strings.Contains(r.Name, "/") || r.Min == 0 {
		return fault.Invalid, true
	}
	question, err := proto.Marshal(r.Query)
	if err != nil {
		panic(err)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&coordv1.Requirement{Min: r.Min, Question: question})
	if err != nil {
		panic(err)
	}
	if key := "requirements/" + r.Name; keys[key].value != string(value) {
		m.put(keys, key, version{value: string(value), writer: owner})
	}
	return 0, false
}

// requireWords compares registrations and removal records of the machine with the model.
func requireWords(t *rapid.T, dumb *model, m *machine.Machine) {
	for _, service := range []string{"s", "t"} {
		for _, id := range []string{"a", "b", "c"} {
			key := "directory/n/" + service + "/" + id
			require.Equal(t, dumb.since[key], m.Since(key), key)
			if kv, ok := m.Get(key); ok {
				require.Equal(t, dumb.keys()[key].principal, kv.Principal, key)
			}
			at, owner := m.Removed(key)
			require.Equal(t, dumb.gone[key], gone{at, owner}, key)
		}
	}
}

// requirePublications recomputes every owner's publication.
func requirePublications(t *rapid.T, dumb *model, m *machine.Machine) {
	for id, l := range dumb.leases {
		want := dumb.begun[l.Owner]
		if want.lease != id {
			require.Nil(t, m.Publication(id))
			continue
		}
		sum := directory.Publication{Generation: want.generation}
		for key, v := range dumb.keys() {
			if strings.HasPrefix(key, "directory/") && dumb.leases[v.lease].Owner == l.Owner {
				sum.Add(key, []byte(v.value))
			}
		}
		require.Equal(t, &sum, m.Publication(id))
	}
}

func TestDigest(t *testing.T) {
	a, b := entry("n", "s", "a", 1), entry("n", "s", "b", 1)
	var one, two directory.Digest
	one.Add(string(a.Key), a.Value)
	one.Add(string(b.Key), b.Value)
	two.Add(string(b.Key), b.Value)
	require.NotEqual(t, one, two)
	two.Add(string(a.Key), a.Value)
	require.Equal(t, one, two, "in whatever order")
	two.Remove(string(a.Key), a.Value)
	two.Add(string(a.Key), b.Value)
	require.NotEqual(t, one, two)
	two.Remove(string(a.Key), b.Value)
	two.Remove(string(b.Key), b.Value)
	require.Zero(t, two)
	one, two = directory.Digest{}, directory.Digest{}
	one.Add("ab", []byte("c"))
	two.Add("a", []byte("bc"))
	require.NotEqual(t, one, two)
}
