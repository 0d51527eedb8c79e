package coordtest

import (
	"fmt"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// directories tests the directory and requirements.
func directories() map[string]func(*fixture) {
	all := map[string]func(*fixture){
		"batch is one revision":                batchAtomic,
		"batch that changes nothing":           batchUnchanged,
		"batch replaces a span":                batchReplaces,
		"batch of an earlier generation":       batchFenced,
		"instances go with their lease":        batchExpires,
		"instance of another owner":            batchForeign,
		"last registration counts":             batchLast,
		"instance that was removed":            batchRemoved,
		"instance is malformed":                batchMalformed,
		"batch of a thousand":                  batchLarge,
		"directory is not written otherwise":   directoryReserved,
		"keepalive tells what is published":    publicationTold,
		"requirement is set, changed, deleted": requirementKept,
	}
	for name, test := range all {
		all[name] = func(w *fixture) {
			if !w.Directory {
				w.t.Skip("this form has no directory")
			}
			test(w)
		}
	}
	return all
}

// running is an entry whose value depends on the port alone.
func running(id string, port int) directory.Entry {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Instance{
		Namespace: "default", ServiceName: "web", Id: id, Port: int32(port),
	})
	if err != nil {
		panic(err)
	}
	return directory.Entry{Key: directory.Key("default", "web", id), Value: value}
}

func batch(lease coord.LeaseID, generation uint64, puts ...directory.Entry) *ops.RegisterBatch {
	return &ops.RegisterBatch{Lease: lease, Generation: generation, Puts: puts}
}

// listed gives the directory.
func (w *fixture) listed() []version {
	w.t.Helper()
	page, _, err := w.Range(w.ctx(), ops.Query{Span: directory.Span("", "")}, ops.Linearizable)
	require.NoError(w.t, err)
	all := []version{}
	for _, kv := range page.Keys {
		all = append(all, shown(kv))
	}
	return all
}

func batchAtomic(w *fixture) {
	lease, before := w.lease(w.Alice), w.revision()
	r := w.must(w.Alice, batch(lease, 1, running("b", 1), running("a", 1)))
	require.Equal(w.t, 2, r.Changed)
	require.Equal(w.t, before+1, r.Revision)
	require.Equal(w.t, []version{
		{running("a", 1).Key, string(running("a", 1).Value), r.Revision, r.Revision, 1, lease},
		{running("b", 1).Key, string(running("b", 1).Value), r.Revision, r.Revision, 1, lease},
	}, w.listed())
	r = w.must(w.Alice, &ops.RegisterBatch{
		Lease: lease, Generation: 1, Puts: []directory.Entry{running("a", 2)}, Deletes: []string{running("b", 1).Key, running("none", 1).Key},
	})
	require.Equal(w.t, 2, r.Changed)
	require.Equal(w.t, before+2, r.Revision)
	require.Len(w.t, w.listed(), 1)
}

func batchUnchanged(w *fixture) {
	lease := w.lease(w.Alice)
	first := w.must(w.Alice, batch(lease, 1, running("a", 1), running("b", 1)))
	before := w.listed()
	r := w.must(w.Alice, batch(lease, 2, running("b", 1), running("a", 1)))
	require.Zero(w.t, r.Changed)
	require.Equal(w.t, first.Revision, r.Revision)
	require.Equal(w.t, before, w.listed())
}

func batchReplaces(w *fixture) {
	lease := w.lease(w.Alice)
	w.must(w.Alice, batch(lease, 1, running("a", 1), running("b", 1), running("c", 1)))
	o := batch(lease, 1, running("b", 2))
	o.Replace = &coord.Span{From: running("b", 1).Key}
	require.Equal(w.t, 2, w.must(w.Alice, o).Changed)
	left := w.listed()
	require.Len(w.t, left, 2)
	require.Equal(w.t, string(running("b", 2).Value), left[1].Value)
	require.Equal(w.t, 2, w.must(w.Alice, &ops.RegisterBatch{Lease: lease, Generation: 1, Replace: &coord.Span{}}).Changed)
	require.Empty(w.t, w.listed())
}

func batchFenced(w *fixture) {
	one, two := w.lease(w.Alice), w.lease(w.Alice)
	w.must(w.Alice, batch(one, 5, running("a", 1)))
	w.mustNot(w.Alice, fault.Conflict, "generation", batch(one, 4, running("a", 2)))
	w.mustNot(w.Alice, fault.Conflict, "lease", batch(two, 5, running("a", 2)))
	w.must(w.Alice, batch(two, 6, running("a", 2)))
	w.mustNot(w.Alice, fault.Conflict, "generation", batch(one, 5, running("a", 1)))
	w.mustNot(w.Alice, fault.NotFound, "lease", batch(1<<40, 7, running("a", 1)))
	w.mustNot(w.Bob, fault.Forbidden, "lease", batch(two, 7, running("a", 1)))
	w.must(w.Bob, batch(w.lease(w.Bob), 1, running("of-bob", 1)))
}

func batchExpires(w *fixture) {
	lease := w.lease(w.Alice)
	w.must(w.Alice, batch(lease, 1, running("a", 1), running("b", 1)))
	w.Pass(w.TTL / 2)
	w.keepPublished(w.Alice, lease)
	w.Pass(w.TTL / 2)
	require.Len(w.t, w.listed(), 2)
	w.Pass(2 * w.TTL)
	require.Empty(w.t, w.listed())
}

func batchForeign(w *fixture) {
	mine, theirs := w.lease(w.Alice), w.lease(w.Bob)
	w.must(w.Alice, batch(mine, 1, running("a", 1)))
	r := w.must(w.Bob, batch(theirs, 1, running("a", 2), running("b", 2)))
	require.Equal(w.t, []string{running("a", 2).Key}, r.Foreign)
	require.Equal(w.t, 1, r.Changed)
	require.Zero(w.t, w.must(w.Bob, &ops.RegisterBatch{Lease: theirs, Generation: 1, Deletes: []string{running("a", 2).Key}}).Changed)
	take := running("a", 2)
	take.Adopt = true
	r = w.must(w.Bob, batch(theirs, 1, take))
	require.Empty(w.t, r.Foreign)
	require.Equal(w.t, theirs, w.listed()[0].Lease)
	w.must(w.Alice, &ops.LeaseRevoke{ID: mine})
	require.Len(w.t, w.listed(), 2)
}

// registered puts an entry as a new registration, and returns it with its Since.
func (w *fixture) registered(o Owner, lease coord.LeaseID, e directory.Entry) directory.Entry {
	w.t.Helper()
	e.Adopt = true
	r := w.must(o, batch(lease, 1, e))
	e.Since, e.Adopt = r.Since[0], false
	require.Positive(w.t, e.Since)
	return e
}

func batchLast(w *fixture) {
	mine, theirs := w.lease(w.Alice), w.lease(w.Bob)
	old := w.registered(w.Alice, mine, running("a", 1))
	w.must(w.Alice, write(put("x", "y"))) // the revision moves on
	last := w.registered(w.Bob, theirs, running("a", 2))
	require.Greater(w.t, last.Since, old.Since)
	w.must(w.Alice, &ops.LeaseRevoke{ID: mine})
	w.must(w.Bob, &ops.LeaseRevoke{ID: theirs})
	mine, theirs = w.lease(w.Alice), w.lease(w.Bob)
	require.Empty(w.t, w.must(w.Alice, batch(mine, 1, old)).Foreign)
	require.Empty(w.t, w.must(w.Bob, batch(theirs, 1, last)).Foreign)
	require.Equal(w.t, theirs, w.listed()[0].Lease)
	require.Equal(w.t, []string{old.Key}, w.must(w.Alice, batch(mine, 1, old)).Foreign)
	forgotten := last
	forgotten.Since = 0
	r := w.must(w.Bob, batch(theirs, 2, forgotten))
	require.Equal(w.t, last.Since, r.Since[0], "a new process is told")
}

func batchRemoved(w *fixture) {
	mine, theirs := w.lease(w.Alice), w.lease(w.Bob)
	old := w.registered(w.Alice, mine, running("a", 1))
	w.registered(w.Bob, theirs, running("a", 2))
	w.must(w.Bob, &ops.RegisterBatch{Lease: theirs, Generation: 1, Deletes: []string{old.Key}})
	require.Equal(w.t, []string{old.Key}, w.must(w.Alice, batch(mine, 1, old)).Foreign)
	require.Empty(w.t, w.listed())
	w.registered(w.Alice, mine, running("a", 1))
	require.Len(w.t, w.listed(), 1)
}

func batchMalformed(w *fixture) {
	lease := w.lease(w.Alice)
	good, other := running("a", 1), running("b", 1)
	w.mustNot(w.Alice, fault.Invalid, "puts[1].key", batch(lease, 1, good, directory.Entry{Key: "web/b", Value: other.Value}))
	w.mustNot(w.Alice, fault.TooLarge, "puts[1].value", batch(lease, 1, good, directory.Entry{Key: other.Key, Value: make([]byte, directory.MaxEntry+1)}))
	w.mustNot(w.Alice, fault.Invalid, "puts", batch(lease, 1))
	w.mustNot(w.Alice, fault.Invalid, "puts", batch(lease, 1, good, good))
	w.mustNot(w.Alice, fault.Invalid, "generation", batch(lease, 0, good))
	require.Empty(w.t, w.listed())
}

func batchLarge(w *fixture) {
	lease := w.lease(w.Alice)
	o := batch(lease, 1)
	for i := range directory.MaxBatch {
		o.Puts = append(o.Puts, running(fmt.Sprintf("%04d", i), 1))
	}
	require.Equal(w.t, directory.MaxBatch, w.must(w.Alice, o).Changed)
	require.Len(w.t, w.listed(), directory.MaxBatch)
	o.Puts = append(o.Puts, running("one too many", 1))
	w.mustNot(w.Alice, fault.LimitReached, "puts", o)
}

func directoryReserved(w *fixture) {
	w.must(w.Alice, batch(w.lease(w.Alice), 1, running("a", 1)))
	w.mustNot(w.Alice, fault.Conflict, "then[0].key", write(put(running("a", 1).Key, "v")))
	w.mustNot(w.Alice, fault.Conflict, "then[0].delete", write(del(coord.Under(directory.Prefix))))
	w.mustNot(w.Alice, fault.Conflict, "then[0].key", write(put(requirements.Key("r"), "v")))
	w.mustNot(w.Alice, fault.Conflict, "name", &ops.Lock{Name: "directory", Lease: w.lease(w.Alice)})
	require.Len(w.t, w.listed(), 1)
}

// keepPublished renews a lease and returns its publication.
func (w *fixture) keepPublished(o Owner, lease coord.LeaseID) *directory.Publication {
	w.t.Helper()
	renewals, _, err := o.KeepAlive(w.ctx(), o.Name, []coord.LeaseID{lease})
	require.NoError(w.t, err)
	require.Len(w.t, renewals, 1)
	require.Equal(w.t, w.TTL.Milliseconds(), renewals[0].TTL)
	return renewals[0].Published
}

func publicationTold(w *fixture) {
	lease, plain := w.lease(w.Alice), w.lease(w.Alice)
	require.Nil(w.t, w.keepPublished(w.Alice, lease))
	w.must(w.Alice, batch(lease, 3, running("a", 1), running("b", 1)))
	want := directory.Publication{Generation: 3}
	want.Add(running("a", 1).Key, running("a", 1).Value)
	want.Add(running("b", 1).Key, running("b", 1).Value)
	require.Equal(w.t, &want, w.keepPublished(w.Alice, lease))
	require.Nil(w.t, w.keepPublished(w.Alice, plain))
	w.must(w.Alice, &ops.RegisterBatch{Lease: lease, Generation: 4, Deletes: []string{running("b", 1).Key}})
	want.Generation = 4
	want.Remove(running("b", 1).Key, running("b", 1).Value)
	require.Equal(w.t, &want, w.keepPublished(w.Alice, lease))
	renewals, _, err := w.Bob.KeepAlive(w.ctx(), w.Bob.Name, []coord.LeaseID{lease})
	require.NoError(w.t, err)
	require.Equal(w.t, ops.Renewal{ID: lease}, renewals[0])
}

func requirementKept(w *fixture) {
	question, err := instances.Question(instance.Query{
		Name:     instance.Name{Namespace: "default", Service: "storage"},
		Selector: instance.Selector{Statuses: []instance.Status{instance.StatusUp}, Tags: []string{"ssd"}, Version: "1.x", Zone: "a"},
	})
	require.NoError(w.t, err)
	r := requirements.Requirement{Name: "storage", Min: 3, Question: question}
	read := func() []requirements.Requirement {
		page, _, err := w.Range(w.ctx(), ops.Query{Span: coord.Under(requirements.Prefix)}, ops.Linearizable)
		require.NoError(w.t, err)
		var all []requirements.Requirement
		for _, kv := range page.Keys {
			one, err := requirements.Of(kv.Key, kv.Value)
			require.NoError(w.t, err)
			all = append(all, one)
		}
		return all
	}
	first := w.must(w.Alice, &ops.SetRequirement{Requirement: r})
	require.Equal(w.t, []requirements.Requirement{r}, read())
	require.Equal(w.t, first.Revision, w.must(w.Bob, &ops.SetRequirement{Requirement: r}).Revision)
	r.Min = 4
	require.Equal(w.t, 1, w.must(w.Bob, &ops.SetRequirement{Requirement: r}).Changed)
	require.Equal(w.t, []requirements.Requirement{r}, read())
	bad := r
	bad.Min = 0
	w.mustNot(w.Alice, fault.Invalid, "min", &ops.SetRequirement{Requirement: bad})
	w.must(w.Alice, &ops.DeleteRequirement{Name: "storage"})
	w.mustNot(w.Alice, fault.NotFound, "name", &ops.DeleteRequirement{Name: "storage"})
	require.Empty(w.t, read())
}
