package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func batch(lease coord.LeaseID, generation uint64, puts ...*apiv1.DirectoryEntry) *apiv1.PublishInstancesRequest {
	return &apiv1.PublishInstancesRequest{LeaseId: int64(lease), Generation: generation, Puts: puts}
}

func present(l *log) (found []string) {
	page, _ := l.Range(machine.Query{Span: coord.Under(directory.Prefix)})
	for _, kv := range page.Keys {
		found = append(found, strings.TrimPrefix(kv.Key, directory.Prefix))
	}
	return found
}

// A batch makes one revision. Unchanged entries make no event.
func TestBatch(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)[0]
	a, b, c := entry("n", "s", "a", 1), entry("n", "s", "b", 1), entry("n", "t", "c", 1)
	r, e := l.must(t, batch(id, 1, b, c, a))
	require.Equal(t, 3, r.Changed)
	require.Equal(t, coord.Revision(2), r.Revision)
	require.Len(t, e.Events, 3)
	require.Equal(t, []string{"n/s/a", "n/s/b", "n/t/c"}, present(l))

	r, e = l.must(t, batch(id, 1, a, entry("n", "s", "b", 2), c))
	require.Equal(t, 1, r.Changed)
	require.Len(t, e.Events, 1)
	kv, _ := l.Get(string(a.Key))
	require.Equal(t, coord.Revision(2), kv.ModRevision)
	r, e = l.must(t, batch(id, 1, a, c))
	require.Equal(t, coord.Revision(3), r.Revision)
	require.Empty(t, e.Events)

	r, _ = l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Puts: []*apiv1.DirectoryEntry{a}, Deletes: [][]byte{b.Key, []byte("directory/n/s/none"), []byte("a")}})
	require.Equal(t, 1, r.Changed)
	require.Equal(t, []string{"n/s/a", "n/t/c"}, present(l))
	_, e = l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id)})
	require.Len(t, e.Events, 2, "all go with the lease, in one revision")
	require.Empty(t, present(l))
}

// Span by span, batches correct a directory of any size.
func TestBatchReplaces(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)[0]
	theirs := l.lease(t, bob)
	l.must(t, batch(id, 1, entry("n", "s", "a", 1), entry("n", "s", "b", 1), entry("n", "t", "a", 1)))
	r, _ := l.do(bob, batch(theirs, 1, entry("n", "s", "of-bob", 1)))
	require.NoError(t, r.Err)

	service := directory.Span("n", "s")
	o := batch(id, 1, entry("n", "s", "b", 1), entry("n", "s", "c", 1))
	o.Replace = true
	o.Key, o.RangeEnd = service.Bounds()
	r, e := l.must(t, o)
	require.Equal(t, 2, r.Changed)
	require.Len(t, e.Events, 2)
	require.Equal(t, []string{"n/s/b", "n/s/c", "n/s/of-bob", "n/t/a"}, present(l))
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Replace: true, RangeEnd: []byte{0}})
	require.Equal(t, []string{"n/s/of-bob"}, present(l))

	o = batch(id, 1, entry("n", "t", "a", 1))
	o.Replace = true
	o.Key, o.RangeEnd = service.Bounds()
	l.refused(t, fault.Invalid, "puts[0].key", o)
}

// Late batches of an earlier generation change nothing, under any lease.
func TestGenerations(t *testing.T) {
	l := newLog()
	ids := l.leases(t, 2)
	l.must(t, batch(ids[0], 3, entry("n", "s", "a", 1), entry("n", "s", "b", 1)))
	l.refused(t, fault.Conflict, "lease", batch(ids[1], 3, entry("n", "s", "a", 2)))
	l.refused(t, fault.Conflict, "generation", batch(ids[0], 2, entry("n", "s", "a", 2)))
	l.must(t, batch(ids[1], 4, entry("n", "s", "a", 1)))
	kv, _ := l.Get("directory/n/s/a")
	require.Equal(t, ids[1], kv.Lease)
	require.Nil(t, l.Publication(ids[0]))
	require.Equal(t, 2, l.Publication(ids[1]).Count, "what the earlier one put stays")
	l.refused(t, fault.Conflict, "generation", batch(ids[0], 3, entry("n", "s", "b", 2)))
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(ids[0])})
	require.Equal(t, []string{"n/s/a"}, present(l))

	// The generation ends with its lease. Then every generation may follow.
	third := l.leases(t, 1)[0]
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(ids[1])})
	l.refused(t, fault.NotFound, "lease", batch(ids[1], 4, entry("n", "s", "a", 1)))
	l.must(t, batch(third, 1, entry("n", "s", "a", 1)))
	id := third
	l.refused(t, fault.Invalid, "generation", batch(id, 0))
}

// The entry of an authenticated caller moves only for that caller while its lease lasts, whatever Since says.
func TestEntryOfACaller(t *testing.T) {
	l := newLog()
	mine, theirs := l.leases(t, 1)[0], l.lease(t, bob)
	by := func(principal string, port int, since coord.Revision) *apiv1.DirectoryEntry {
		e := entry("n", "s", "a", port)
		e.Principal, e.Since, e.Adopt = principal, int64(since), since == 0
		return e
	}
	key := string(by("", 1, 0).Key)
	l.must(t, batch(mine, 1, by("@web", 1, 0)))
	for _, put := range []*apiv1.DirectoryEntry{by("@pay", 2, 0), by("", 2, 0), by("@pay", 2, l.Revision()), by("", 2, l.Revision())} {
		r, e := l.do(bob, batch(theirs, 1, put))
		require.NoError(t, r.Err)
		require.Equal(t, []string{key}, r.Foreign)
		require.Empty(t, e.Events)
	}
	_, e := l.must(t, batch(mine, 1, by("@ops", 1, 0)))
	require.Len(t, e.Events, 1, "a peer decides whose instance it has")
	l.must(t, batch(mine, 1, by("@web", 1, 0)))
	r, _ := l.do(bob, batch(theirs, 1, by("@web", 2, 0)))
	require.Empty(t, r.Foreign, "the same caller moves it")
	r, _ = l.must(t, batch(mine, 1, by("@ops", 3, 0)))
	require.Equal(t, []string{key}, r.Foreign, "in both directions")
	r, _ = l.must(t, batch(mine, 1, by("@web", 3, 0)))
	require.Empty(t, r.Foreign)
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(mine)})
	r, _ = l.do(bob, batch(theirs, 1, by("@pay", 4, 0)))
	require.Empty(t, r.Foreign, "a lease that ended keeps nobody out")

	kv, _ := l.Get(key)
	require.Equal(t, "@pay", kv.Principal)
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, l.StateHash(), restored.StateHash())
	kv, _ = restored.Get(key)
	require.Equal(t, "@pay", kv.Principal)

	for _, name := range []string{"@", "web", "~peer", "@" + strings.Repeat("x", 256), "@\xff"} {
		l.refused(t, fault.Invalid, "puts[0].principal", batch(theirs, 1, by(name, 1, 0)))
	}
}

// An entry has one owner, and only a new owner moves it.
func TestAdoption(t *testing.T) {
	l := newLog()
	mine, theirs := l.leases(t, 1)[0], l.lease(t, bob)
	moved := entry("n", "s", "a", 2)
	l.must(t, batch(mine, 1, entry("n", "s", "a", 1), entry("n", "s", "b", 1)))
	r, e := l.do(bob, batch(theirs, 1, moved, entry("n", "s", "z", 1)))
	require.NoError(t, r.Err, "one entry that is another's keeps no other back")
	require.Equal(t, []string{string(moved.Key)}, r.Foreign)
	require.Len(t, e.Events, 1)
	r, _ = l.do(bob, &apiv1.PublishInstancesRequest{LeaseId: int64(theirs), Generation: 1, Deletes: [][]byte{moved.Key}})
	require.NoError(t, r.Err)
	require.Contains(t, present(l), "n/s/a")

	moved.Adopt = true
	r, e = l.do(bob, batch(theirs, 1, moved))
	require.NoError(t, r.Err)
	require.Empty(t, r.Foreign)
	require.Equal(t, mine, e.Events[0].Prev.Lease)
	require.Equal(t, theirs, e.Events[0].KV.Lease)
	require.Equal(t, 1, l.Publication(mine).Count, "the former owner can tell")
	require.Equal(t, 2, l.Publication(theirs).Count)
	r, _ = l.must(t, batch(mine, 1, entry("n", "s", "a", 1)))
	require.Equal(t, []string{string(moved.Key)}, r.Foreign)
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(mine)})
	require.Equal(t, []string{"n/s/a", "n/s/z"}, present(l))

	// The entry ended with its owner's lease.
	r, _ = l.do(bob, batch(theirs, 1, entry("n", "s", "b", 1)))
	require.NoError(t, r.Err)
	require.Contains(t, present(l), "n/s/b")
}

func TestBatchIsValidated(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)[0]
	good := entry("n", "s", "a", 1)
	with := func(key string, value []byte) proto.Message {
		return batch(id, 1, good, &apiv1.DirectoryEntry{Key: []byte(key), Value: value})
	}
	many := make([]*apiv1.DirectoryEntry, directory.MaxBatch+1)
	for i := range many {
		many[i] = entry("n", "s", fmt.Sprint(i), 1)
	}
	large := make([]*apiv1.DirectoryEntry, 40)
	for i := range large {
		value, err := proto.Marshal(&agentv1.Instance{Namespace: "n", ServiceName: "s", Id: fmt.Sprint(i), Description: strings.Repeat("x", 16_000)})
		require.NoError(t, err)
		large[i] = &apiv1.DirectoryEntry{Key: fmt.Append(nil, "directory/n/s/", i), Value: value}
	}
	for _, c := range []struct {
		name  string
		op    proto.Message
		kind  fault.Kind
		field string
	}{
		{"nothing", batch(id, 1), fault.Invalid, "puts"},
		{"no key", with("", good.Value), fault.Invalid, "puts[1].key"},
		{"a key outside", with("services/n/s/a", good.Value), fault.Invalid, "puts[1].key"},
		{"a key without an id", with("directory/n/s/", good.Value), fault.Invalid, "puts[1].key"},
		{"an id with a slash", with("directory/n/s/a/b", good.Value), fault.Invalid, "puts[1].key"},
		{"a namespace in capitals", with("directory/N/s/a", good.Value), fault.Invalid, "puts[1].key"},
		{"a long service", with("directory/n/"+strings.Repeat("s", 65)+"/a", good.Value), fault.Invalid, "puts[1].key"},
		{"no value", with("directory/n/s/b", nil), fault.Invalid, "puts[1].value"},
		{"a large value", with("directory/n/s/b", make([]byte, 16<<10+1)), fault.TooLarge, "puts[1].value"},
		{"a key twice", batch(id, 1, good, good), fault.Invalid, "puts"},
		{"put and deleted", &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Puts: []*apiv1.DirectoryEntry{good}, Deletes: [][]byte{good.Key}}, fault.Invalid, "puts"},
		{"no key to delete", &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Deletes: [][]byte{[]byte("")}}, fault.Invalid, "deletes[0]"},
		{"too many", batch(id, 1, many...), fault.LimitReached, "puts"},
		{"too large", batch(id, 1, large...), fault.TooLarge, "puts"},
		{"no lease", batch(99, 1, good), fault.NotFound, "lease"},
		{"a plain put", write(put(string(good.Key), "v", 0)), fault.Conflict, "then[0].key"},
		{"a plain put of a requirement", write(put("requirements/r", "v", 0)), fault.Conflict, "then[0].key"},
		{"a lock in the directory", lock("directory/n", id), fault.Conflict, "name"},
		{"a lock beside the directory", lock("directory", id), fault.Conflict, "name"},
	} {
		t.Run(c.name, func(t *testing.T) { l.refused(t, c.kind, c.field, c.op) })
	}
	l.refusedTo(t, bob, batch(id, 1, good), fault.Forbidden, "lease")
	l.must(t, batch(id, 1, many[1:]...))
	l.refused(t, fault.Conflict, "then[0].delete", write(del(coord.Span{})))

	limits := l.Limits()
	limits.LeaseKeys, limits.PerOwner.Bytes = directory.MaxBatch, 512<<10
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.refused(t, fault.LimitReached, "lease", batch(id, 1, many[0]))
	limits.LeaseKeys = 2000
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.refused(t, fault.PoolExhausted, "pool.bytes.share", &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Puts: large[:32]})
}

func TestKeysOfTheDirectory(t *testing.T) {
	key := directory.Key("default", "web-1", "A.b_c:d-9")
	require.Equal(t, "directory/default/web-1/A.b_c:d-9", key)
	namespace, service, id, ok := directory.Names(key)
	require.True(t, ok)
	require.Equal(t, []string{"default", "web-1", "A.b_c:d-9"}, []string{namespace, service, id})
	for _, span := range []coord.Span{
		directory.Span("", ""), directory.Span("default", ""), directory.Span("default", "web-1"),
	} {
		require.True(t, span.Contains(key))
	}
	require.False(t, directory.Span("default", "web").Contains(key))
	for _, other := range []string{"", "directory/", "directory/a", "directory/a/b", "directory/a/b/", "directory//b/c", "x/a/b/c"} {
		_, _, _, ok := directory.Names(other)
		require.False(t, ok, other)
	}
}

func TestRequirements(t *testing.T) {
	l := newLog()
	query := &agentv1.DiscoverRequest{ServiceName: "storage", Tags: []string{"ssd"}, Version: ">=1.2"}
	question, err := proto.Marshal(query)
	require.NoError(t, err)
	r := &apiv1.SetRequirementRequest{Name: "storage", Min: 3, Query: query}
	set := func(change func(*apiv1.SetRequirementRequest)) *apiv1.SetRequirementRequest {
		other := proto.CloneOf(r)
		change(other)
		return other
	}
	_, e := l.must(t, r)
	read, err := requirements.Of(e.Events[0].Key, e.Events[0].KV.Value)
	require.NoError(t, err)
	require.Equal(t, requirements.Requirement{Name: "storage", Min: 3, Question: question}, read)
	_, e = l.must(t, r)
	require.Empty(t, e.Events)
	_, e = l.must(t, set(func(r *apiv1.SetRequirementRequest) { r.Min = 4 }))
	require.Len(t, e.Events, 1)

	for _, c := range []struct {
		kind   fault.Kind
		field  string
		change func(*apiv1.SetRequirementRequest)
	}{
		{fault.Invalid, "name", func(r *apiv1.SetRequirementRequest) { r.Name = "" }},
		{fault.Invalid, "name", func(r *apiv1.SetRequirementRequest) { r.Name = "a/b" }},
		{fault.Invalid, "min", func(r *apiv1.SetRequirementRequest) { r.Min = 0 }},
		{fault.Invalid, "min", func(r *apiv1.SetRequirementRequest) { r.Min = requirements.MaxInstances + 1 }},
		{fault.TooLarge, "selector", func(r *apiv1.SetRequirementRequest) {
			r.Query = &agentv1.DiscoverRequest{Version: strings.Repeat("1", 64<<10)}
		}},
	} {
		l.refused(t, c.kind, c.field, set(c.change))
	}
	l.must(t, &apiv1.DeleteRequirementRequest{Name: "storage"})
	l.refused(t, fault.NotFound, "name", &apiv1.DeleteRequirementRequest{Name: "storage"})
	most := requirements.Max / 4 * 3
	for i := range most {
		l.must(t, set(func(r *apiv1.SetRequirementRequest) { r.Name = fmt.Sprint(i) }))
	}
	l.refused(t, fault.PoolExhausted, "pool.requirements.share", r)
	l.must(t, set(func(r *apiv1.SetRequirementRequest) { r.Name, r.Min = "7", 9 }))
	_, err = requirements.Of("a", nil)
	require.ErrorIs(t, err, fault.Invalid)
	_, err = requirements.Of("requirements/a", []byte{0xff})
	require.ErrorIs(t, err, fault.Invalid)
}
