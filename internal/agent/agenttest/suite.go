package agenttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// fixture is an implementation under test with its test.
type fixture struct {
	API
	*testing.T
}

// Web is a registration of the service web.
func Web(id string) instance.Registration {
	return instance.Registration{
		Key:  instance.Key{Namespace: instance.DefaultNamespace, Service: "web", ID: id},
		Spec: instance.Spec{Host: "10.0.0.1", Port: 8080, Version: "1.2.3", Tags: []string{"v1"}, Zone: "eu"},
	}
}

// All selects the instances of web with any status.
func All() instance.Query {
	return instance.Query{
		Name: instance.Name{Namespace: instance.DefaultNamespace, Service: "web"}, Selector: instance.Selector{AnyStatus: true},
	}
}

// Up selects the instances of web that are up.
func Up() instance.Query { return instance.Query{Name: All().Name} }

func (w *fixture) register(id string, edits ...func(*instance.Registration)) instances.Registered {
	w.Helper()
	r := Web(id)
	for _, edit := range edits {
		edit(&r)
	}
	done, err := w.Register(w.Context(), r)
	require.NoError(w, err)
	return done
}

func (w *fixture) discover(q instance.Query) instance.Result {
	w.Helper()
	r, err := w.Discover(w.Context(), q)
	require.NoError(w, err)
	return r
}

// ids returns the ids and statuses of a result.
func ids(list []*instance.Instance) map[string]string {
	all := make(map[string]string, len(list))
	for _, i := range list {
		all[i.ID] = i.Status.String()
	}
	return all
}

func (w *fixture) refused(kind fault.Kind, field string, err error) {
	w.Helper()
	require.ErrorIs(w, err, kind)
	require.Equal(w, field, fault.FieldOf(err), "%v", err)
	require.NotEmpty(w, fault.Message(err))
}

func registering(w *fixture) {
	done := w.register("", func(r *instance.Registration) {
		r.Spec.Metadata, r.Spec.Dependencies = map[string]string{"team": "a"}, []string{"db", "cache", "db"}
		r.Spec.Check = &instance.Check{Type: instance.TCP}
		r.Status = instance.StatusStarting
	})
	require.NotEmpty(w, done.ID)
	require.NotEmpty(w, done.Lease)
	require.True(w, done.Created)
	require.Equal(w, instance.DefaultUnhealthyAfter, done.TTL)
	require.Equal(w, instance.DefaultUnhealthyAfter/3, done.Interval)
	require.Equal(w, instance.StatusStarting, done.Status)
	require.Equal(w, []string{"cache", "db"}, done.Spec.Dependencies)
	require.NotZero(w, done.Spec.Check.Interval)
	require.False(w, done.RegisteredAt.IsZero())
	r := w.discover(All())
	require.Len(w, r.Instances, 1)
	found := r.Instances[0] // a check may have changed the status already
	require.True(w, done.Spec.Equal(found.Spec), "%v\n%v", done.Instance, found)
	require.Equal(w, []any{done.Key, done.Peer}, []any{found.Key, found.Peer})
}

func replacing(w *fixture) {
	before := w.register("a")
	after := w.register("a", func(r *instance.Registration) { r.Spec.Port = 9090 })
	require.False(w, after.Created)
	require.Equal(w, before.Lease, after.Lease)
	require.True(w, before.RegisteredAt.Equal(after.RegisteredAt))
	require.Greater(w, after.Revision, before.Revision)
	require.Equal(w, 9090, w.discover(Up()).Instances[0].Spec.Port)
}

func strict(w *fixture) {
	w.register("a")
	r := Web("a")
	r.Strict = true
	_, err := w.Register(w.Context(), r)
	require.ErrorIs(w, err, fault.Exists)
	r.ID = "b"
	done, err := w.Register(w.Context(), r)
	require.NoError(w, err)
	require.True(w, done.Created)
}

func refusals(w *fixture) {
	for field, edit := range map[string]func(*instance.Registration){
		"service":   func(r *instance.Registration) { r.Service = "No Label" },
		"namespace": func(r *instance.Registration) { r.Namespace = "-" + string(make([]byte, 70)) },
		"id":        func(r *instance.Registration) { r.ID = "a/b" },
		"port":      func(r *instance.Registration) { r.Spec.Port = 70_000 },
		"weight":    func(r *instance.Registration) { r.Spec.Weight = 101 },
		"health_check.interval": func(r *instance.Registration) {
			r.Spec.Check = &instance.Check{Type: instance.TCP, Interval: time.Millisecond}
		},
	} {
		r := Web("a")
		edit(&r)
		_, err := w.Register(w.Context(), r)
		if w.Wire && field == "namespace" {
			require.Error(w, err) // gRPC cannot carry it
			continue
		}
		w.refused(fault.Invalid, field, err)
	}
	r := Web("a")
	r.Spec.Version = "not a version"
	_, err := w.Register(w.Context(), r)
	w.refused(fault.Unprocessable, "version", err)
	require.Empty(w, w.discover(All()).Instances)
	q := All()
	q.Version = ">=!"
	_, err = w.Discover(w.Context(), q)
	w.refused(fault.Invalid, "version", err)
	q = All()
	q.Service = ""
	_, err = w.Discover(w.Context(), q)
	w.refused(fault.Invalid, "service", err)
}

func deregistering(w *fixture) {
	done := w.register("a")
	at, err := w.Deregister(w.Context(), done.Key)
	require.NoError(w, err)
	require.Equal(w, w.Wire, at.At.IsZero())
	require.Empty(w, w.discover(All()).Instances)
	_, err = w.Deregister(w.Context(), done.Key)
	require.ErrorIs(w, err, fault.NotFound)
	again := w.register("a")
	require.NotEqual(w, done.Lease, again.Lease)
}

func heartbeats(w *fixture) {
	a, b := w.register("a"), w.register("b")
	_, err := w.Deregister(w.Context(), b.Key)
	require.NoError(w, err)
	beats, err := w.Heartbeat(w.Context(), []instances.Ref{{Lease: a.Lease}})
	require.NoError(w, err)
	require.Equal(w, []any{a.Lease, instance.StatusUp, instance.DefaultUnhealthyAfter}, []any{beats[0].Lease, beats[0].Status, beats[0].TTL})
	require.False(w, beats[0].Expires.IsZero())
	beats, err = w.Heartbeat(w.Context(), []instances.Ref{{Key: a.Key}})
	require.NoError(w, err)
	require.NoError(w, beats[0].Err)
	require.Equal(w, a.Lease, beats[0].Lease)
	beats, err = w.Heartbeat(w.Context(), []instances.Ref{{Lease: b.Lease}})
	require.NoError(w, err)
	require.ErrorIs(w, beats[0].Err, fault.Gone)
	require.IsType(w, time.Time{}, fault.ValueOf(beats[0].Err))
	beats, err = w.Heartbeat(w.Context(), []instances.Ref{{Lease: "lease-nobody"}})
	require.NoError(w, err)
	require.ErrorIs(w, beats[0].Err, fault.NotFound)
	beats, err = w.Heartbeat(w.Context(), []instances.Ref{{Lease: "lease-nobody"}, {Lease: a.Lease}, {Key: b.Key}})
	require.NoError(w, err)
	require.Len(w, beats, 3)
	require.Error(w, beats[0].Err)
	require.NoError(w, beats[1].Err)
	require.Error(w, beats[2].Err)
	_, err = w.Heartbeat(w.Context(), make([]instances.Ref, instances.MaxBeats+1))
	w.refused(fault.Invalid, "lease_ids", err)
}

func thresholds(w *fixture) {
	done := w.register("a")
	w.Pass(29 * time.Second)
	require.Len(w, w.discover(Up()).Instances, 1)
	w.Pass(time.Second)
	require.Empty(w, w.discover(Up()).Instances)
	require.Equal(w, map[string]string{"a": "UNHEALTHY"}, ids(w.discover(All()).Instances))
	beats, err := w.Heartbeat(w.Context(), []instances.Ref{{Lease: done.Lease}})
	require.NoError(w, err)
	require.Equal(w, instance.StatusUp, beats[0].Status)
	require.Len(w, w.discover(Up()).Instances, 1)
	w.Pass(time.Minute)
	require.Empty(w, w.discover(All()).Instances)
}

func statuses(w *fixture) {
	done := w.register("a")
	changed, err := w.SetStatus(w.Context(), done.Key, instance.StatusOutOfService)
	require.NoError(w, err)
	require.Equal(w, []instance.Status{instance.StatusOutOfService, instance.StatusOutOfService}, []instance.Status{changed.Status, changed.Override})
	_, err = w.Heartbeat(w.Context(), []instances.Ref{{Lease: done.Lease}})
	require.NoError(w, err)
	require.Empty(w, w.discover(Up()).Instances, "an override wins")
	changed, err = w.SetStatus(w.Context(), done.Key, instance.StatusUp)
	require.NoError(w, err)
	require.Equal(w, []instance.Status{instance.StatusUp, instance.StatusUnknown}, []instance.Status{changed.Status, changed.Override})
	_, err = w.SetStatus(w.Context(), instance.Key{Namespace: "default", Service: "web", ID: "nobody"}, instance.StatusDown)
	require.ErrorIs(w, err, fault.NotFound)
}

func selectors(w *fixture) {
	w.register("a")
	w.register("b", func(r *instance.Registration) {
		r.Spec.Zone, r.Spec.Version, r.Spec.Tags = "us", "2.0.0", []string{"v2"}
	})
	w.register("c", func(r *instance.Registration) { r.Namespace = "other" })
	for want, s := range map[string]instance.Selector{
		"a":  {Zone: "eu"},
		"b":  {Tags: []string{"v2"}},
		"ab": {PreferZone: "eu"},
		"ba": {PreferZone: "us"},
		"":   {Statuses: []instance.Status{instance.StatusDown}},
	} {
		q := Up()
		q.Selector = s
		got := ""
		for _, i := range w.discover(q).Instances {
			got += i.ID
		}
		require.Equal(w, want, got, "%+v", s)
	}
	q := Up()
	q.ID = "b"
	require.Equal(w, map[string]string{"b": "UP"}, ids(w.discover(q).Instances))
	q = Up()
	q.Version = "^2.0"
	require.Equal(w, map[string]string{"b": "UP"}, ids(w.discover(q).Instances))
	q = Up()
	q.Namespace = "other"
	require.Equal(w, map[string]string{"c": "UP"}, ids(w.discover(q).Instances))
	q.Service = "nobody-knows"
	require.Empty(w, w.discover(q).Instances)
}

func listing(w *fixture) {
	for _, k := range []instance.Key{
		{Namespace: "default", Service: "web", ID: "a"}, {Namespace: "default", Service: "db", ID: "b"},
		{Namespace: "default", Service: "web", ID: "0"}, {Namespace: "default", Service: "db-old", ID: "a"}, {Namespace: "other", Service: "web", ID: "c"},
	} {
		w.register(k.ID, func(r *instance.Registration) { r.Key = k })
	}
	_, err := w.SetStatus(w.Context(), instance.Key{Namespace: "default", Service: "web", ID: "0"}, instance.StatusDown)
	require.NoError(w, err)
	list := func(namespace string, s instance.Selector) (names []string) {
		r, err := w.List(w.Context(), instances.ListQuery{Namespace: namespace, Selector: s})
		require.NoError(w, err)
		require.NotZero(w, r.Index)
		for _, i := range r.Instances {
			names = append(names, i.Service+"/"+i.ID)
		}
		return names
	}
	require.Equal(w, []string{"db/b", "db-old/a", "web/a"}, list("default", instance.Selector{}))
	require.Equal(w, []string{"db/b", "db-old/a", "web/0", "web/a"}, list("default", instance.Selector{AnyStatus: true}))
	require.Equal(w, []string{"db-old/a", "web/a"}, list("default", instance.Selector{ID: "a"}))
	require.Equal(w, []string{"web/c"}, list("other", instance.Selector{}))
	require.Empty(w, list("nowhere", instance.Selector{}))
	_, err = w.List(w.Context(), instances.ListQuery{Namespace: "default", Selector: instance.Selector{Version: "?"}})
	w.refused(fault.Invalid, "version", err)
}

func indexes(w *fixture) {
	w.register("a")
	first := w.discover(Up())
	w.register("b", func(r *instance.Registration) { r.Service = "other" })
	require.Equal(w, first.Index, w.discover(Up()).Index, "another service")
	w.register("a")
	require.Equal(w, first.Index, w.discover(Up()).Index, "nothing has changed")
	w.register("a", func(r *instance.Registration) { r.Spec.Port = 1 })
	require.Greater(w, w.discover(Up()).Index, first.Index)
}

func services(w *fixture) {
	w.register("a")
	b := w.register("b", func(r *instance.Registration) { r.Spec.Tags = []string{"v2"} })
	w.register("c", func(r *instance.Registration) { r.Service = "db" })
	w.register("d", func(r *instance.Registration) { r.Namespace = "other" })
	_, err := w.SetStatus(w.Context(), b.Key, instance.StatusDown)
	require.NoError(w, err)
	s, err := w.Services(w.Context(), instance.DefaultNamespace)
	require.NoError(w, err)
	require.Equal(w, []instance.Summary{
		{Name: "db", Instances: 1, Up: 1, Tags: []string{"v1"}}, {Name: "web", Instances: 2, Up: 1, Tags: []string{"v1", "v2"}},
	}, s.Services)
}

// patient bounds a wait in real time.
const patient = time.Minute

// feed is a running watch.
type feed struct {
	w       *fixture
	batches chan instance.Batch
	done    chan error
	cancel  context.CancelFunc
}

func (w *fixture) follow(q instance.Query, after uint64) *feed {
	ctx, cancel := context.WithCancel(w.Context())
	f := &feed{w: w, batches: make(chan instance.Batch, 64), done: make(chan error, 1), cancel: cancel}
	go func() {
		f.done <- w.Watch(ctx, q, after, func(b instance.Batch) error {
			f.batches <- b
			return nil
		})
	}()
	w.Cleanup(f.stop)
	return f
}

// stop ends the watch.
func (f *feed) stop() {
	f.cancel()
	f.done <- <-f.done
}

// next returns the next batch with events or a reset.
func (f *feed) next() instance.Batch {
	f.w.Helper()
	for {
		if b := f.any(); b.Reset || len(b.Events) > 0 {
			return b
		}
	}
}

// any returns the next batch.
func (f *feed) any() instance.Batch {
	f.w.Helper()
	timer := time.NewTimer(patient)
	defer timer.Stop()
	select {
	case b := <-f.batches:
		return b
	case err := <-f.done:
		f.done <- err
		require.NoError(f.w, err, "the watch has ended")
	case <-timer.C:
		require.FailNow(f.w, "nothing came")
	}
	return instance.Batch{}
}

// told is a batch in short form.
func told(b instance.Batch) (short []string) {
	names := map[instance.EventType]string{instance.Added: "+", instance.Modified: "~", instance.Removed: "-"}
	for _, e := range b.Events {
		short = append(short, names[e.Type]+e.Instance.ID+" "+e.Instance.Status.String())
	}
	return short
}

func watching(w *fixture) {
	w.register("a")
	f := w.follow(Up(), 0)
	b := f.next()
	require.True(w, b.Reset)
	require.Equal(w, []string{"+a UP"}, told(b))
	done := w.register("b")
	b = f.next()
	require.False(w, b.Reset)
	require.Equal(w, []string{"+b UP"}, told(b))
	require.Equal(w, done.Revision, b.Events[0].Revision)
	w.register("b", func(r *instance.Registration) { r.Spec.Port = 1 })
	require.Equal(w, []string{"~b UP"}, told(f.next()))
	w.register("c", func(r *instance.Registration) { r.Service = "other" })
	_, err := w.SetStatus(w.Context(), done.Key, instance.StatusOutOfService)
	require.NoError(w, err)
	require.Equal(w, []string{"-b OUT_OF_SERVICE"}, told(f.next()))
	_, err = w.Deregister(w.Context(), Web("a").Key)
	require.NoError(w, err)
	require.Equal(w, []string{"-a DOWN"}, told(f.next()))
	f.cancel()
	err = <-f.done
	f.done <- err
	require.ErrorIs(w, err, fault.Canceled)
	err = w.Watch(w.Context(), instance.Query{Name: instance.Name{Service: "no name"}}, 0, func(instance.Batch) error { return nil })
	require.ErrorIs(w, err, fault.Invalid)
}

func watchingNamespace(w *fixture) {
	w.register("a")
	f := w.follow(instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace}}, 0)
	require.Equal(w, []string{"+a UP"}, told(f.next()))
	w.register("b", func(r *instance.Registration) { r.Service = "other" })
	require.Equal(w, []string{"+b UP"}, told(f.next()))
	f.cancel()
	err := <-f.done
	f.done <- err
	require.ErrorIs(w, err, fault.Canceled)
}

func watchingOn(w *fixture) {
	w.register("a")
	f := w.follow(All(), 0)
	first := f.next()
	f.stop()
	w.register("b")
	w.register("a", func(r *instance.Registration) { r.Spec.Port = 1 })
	b := w.follow(All(), first.Index).next()
	require.False(w, b.Reset)
	require.Equal(w, []string{"+b UP", "~a UP"}, told(b))
	require.Greater(w, b.Index, first.Index)
	b = w.follow(All(), b.Index+1_000_000).next()
	require.True(w, b.Reset, "an index of the future is another peer's")
}

func forgottenPast(w *fixture) {
	if w.Forget == nil {
		w.Skip("cannot be had")
	}
	w.register("a")
	f := w.follow(All(), 0)
	first := f.next()
	f.stop()
	w.register("b")
	w.register("c")
	w.Forget()
	b := w.follow(All(), first.Index).next()
	require.True(w, b.Reset)
	require.Equal(w, []string{"+a UP", "+b UP", "+c UP"}, told(b))
}

func lostContact(w *fixture) {
	if w.Lose == nil {
		w.Skip("cannot be had")
	}
	w.register("a")
	f := w.follow(Up(), 0)
	require.False(w, f.next().Stale)
	w.Lose("no majority")
	b := f.any()
	require.Equal(w, []any{true, "no majority"}, []any{b.Stale, b.Reason})
	w.Pass(time.Second)
	r := w.discover(Up())
	require.True(w, r.Stale)
	require.Equal(w, "no majority", r.Reason)
	require.Equal(w, time.Second, r.Age)
	require.Len(w, r.Instances, 1)
	q := Up()
	q.Consistency = instance.Linearizable
	_, err := w.Discover(w.Context(), q)
	require.ErrorIs(w, err, fault.Unavailable)
	w.Find()
	require.False(w, w.discover(q).Stale)
	for f.any().Stale {
	}
}
