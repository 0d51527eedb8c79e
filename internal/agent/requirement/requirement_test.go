package requirement

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// leadership is a Leader set by the test.
type leadership struct {
	mu      sync.Mutex
	term    uint64
	leader  string
	changed chan struct{}
}

func (t *leadership) Leading() (uint64, string, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.term, t.leader, t.changed
}

func (t *leadership) elect(leader string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term, t.leader = t.term+1, leader
	close(t.changed)
	t.changed = make(chan struct{})
}

// fixture is a group with evaluators at its peers and a registering
// application.
type fixture struct {
	*coordtest.Solo
	t          *testing.T
	leadership *leadership
	lease      coord.LeaseID
	batches    int // commands of evaluators
}

// inTime runs a test in virtual time.
func inTime(t *testing.T, test func(w *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{t: t, leadership: &leadership{changed: make(chan struct{})}, Solo: coordtest.New(coordtest.Config{
			Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		})}
		w.lease = w.do(&ops.LeaseGrant{TTL: 24 * time.Hour.Milliseconds()}).Lease
		test(w)
	})
}

// Execute counts commands of evaluators.
func (w *fixture) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if cmd.GetOwner() != "app" {
		w.batches++
	}
	return w.Solo.Execute(ctx, cmd)
}

func (w *fixture) do(op ops.Op) ops.Result {
	w.t.Helper()
	r, _, err := ops.Of(w).Do(w.t.Context(), ops.Command{Owner: "app", Op: op})
	require.NoError(w.t, err)
	return r
}

// run runs an evaluator at a peer until stop.
func (w *fixture) run(self string) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	d := New(Config{Counter: instances.Counter, Self: self, Leader: w.leadership, Member: w})
	go func() { defer close(done); d.Run(ctx) }()
	return func() { cancel(); <-done }
}

// register adds instances of a service to the directory.
func (w *fixture) register(service string, ids ...string) {
	w.t.Helper()
	op := &ops.RegisterBatch{Lease: w.lease, Generation: 1}
	for _, id := range ids {
		i := &instance.Instance{
			Key:  instance.Key{Namespace: "default", Service: service, ID: id},
			Spec: instance.Spec{Host: "10.0.0.1", Port: 80}, Status: instance.StatusUp,
		}
		op.Puts = append(op.Puts, directory.Entry{Key: directory.Key(i.Namespace, i.Service, i.ID), Value: i.Marshal()})
	}
	require.Empty(w.t, w.do(op).Foreign)
}

func (w *fixture) deregister(service, id string) {
	key := directory.Key("default", service, id)
	w.do(&ops.RegisterBatch{Lease: w.lease, Generation: 1, Deletes: []string{key}})
}

func (w *fixture) require(name, service string, least int) coord.Revision {
	w.t.Helper()
	return w.do(&ops.SetRequirement{Requirement: requirements.Requirement{
		Name: name, Min: least, Question: question(w.t, service, instance.Selector{}),
	}}).Revision
}

// standing waits for running work and describes the status of a requirement.
func (w *fixture) standing(name string) string {
	w.t.Helper()
	synctest.Wait()
	s, _, err := requirements.Get(w.t.Context(), w, name)
	if fault.KindOf(err) == fault.NotFound {
		return "none"
	}
	require.NoError(w.t, err)
	return fmt.Sprintf("%s %d/%d", s.State, s.Available, s.Needed)
}

// keys returns the stored statuses.
func (w *fixture) keys() map[string]*coord.KeyValue {
	page, _, err := ops.Of(w).Range(w.t.Context(), ops.Query{Span: coord.Under(requirements.StatusPrefix)}, ops.Linearizable)
	require.NoError(w.t, err)
	all := map[string]*coord.KeyValue{}
	for _, kv := range page.Keys {
		all[kv.Key] = kv
	}
	return all
}

// write writes a key as any client can.
func (w *fixture) write(key, value string) {
	w.do(&ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: []byte(value)}}}})
}

func TestStatus(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		defer w.run("a")()
		w.require("store", "storage", 2)
		require.Equal(t, "pending 0/2", w.standing("store"), "nobody leads")
		w.leadership.elect("a")
		require.Equal(t, "insufficient_nodes 0/2", w.standing("store"))
		w.register("storage", "s1")
		w.register("other", "s1", "s2")
		require.Equal(t, "insufficient_nodes 0/2", w.standing("store"), "a count that changes no state has time")
		time.Sleep(settleTime)
		require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		w.register("storage", "s2")
		require.Equal(t, "satisfied 2/2", w.standing("store"), "at once")

		w.require("store", "storage", 3)
		require.Equal(t, "insufficient_nodes 2/3", w.standing("store"), "what is asked for is judged anew at once")
		w.deregister("storage", "s1")
		w.require("store", "storage", 1)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
		w.do(&ops.DeleteRequirement{Name: "store"})
		require.Equal(t, "none", w.standing("store"))
		require.Empty(t, w.keys())
	})
}

// TestProblem checks that the status names an unreadable selector.
func TestProblem(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		defer w.run("a")()
		w.leadership.elect("a")
		w.do(&ops.SetRequirement{Requirement: requirements.Requirement{
			Name: "odd", Min: 1, Question: question(t, "s", instance.Selector{Version: "?"}),
		}})
		require.Equal(t, "insufficient_nodes 0/1", w.standing("odd"))
		s, _, err := requirements.Get(w.t.Context(), w, "odd")
		require.NoError(t, err)
		require.NotEmpty(t, s.Problem)
	})
}

// TestWaiters checks that a late registration wakes waiters under any leader,
// that other changes do not, and that a deletion ends a wait.
func TestWaiters(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		defer w.run("a")()
		defer w.run("b")()
		w.leadership.elect("a")
		w.require("store", "storage", 2)
		w.require("doomed", "storage", 9)
		type outcome struct {
			requirements.Evaluated
			err   error
			after time.Duration
		}
		await := func(name string) <-chan outcome {
			got, began := make(chan outcome, 1), time.Now()
			go func() {
				s, _, err := requirements.Await(w.t.Context(), w, name, requirements.Evaluated.Satisfied)
				got <- outcome{s, err, time.Since(began)}
			}()
			return got
		}
		satisfied, doomed := await("store"), await("doomed")
		w.register("storage", "s1")
		time.Sleep(time.Hour)
		require.Empty(t, satisfied)
		w.leadership.elect("")
		synctest.Wait()
		w.register("storage", "s2")
		time.Sleep(time.Hour)
		require.Empty(t, satisfied, "nobody judges")
		w.leadership.elect("b")
		got := <-satisfied
		require.NoError(t, got.err)
		require.Equal(t, []any{requirements.Satisfied, 2, 2 * time.Hour}, []any{got.State, got.Available, got.after})
		w.do(&ops.DeleteRequirement{Name: "doomed"})
		gone := <-doomed
		require.ErrorIs(t, gone.err, fault.NotFound)
		require.Equal(t, "name", fault.FieldOf(gone.err))
		require.Equal(t, 2, gone.Available, "as it last was")

		w.require("late", "storage", 5)
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		s, _, err := requirements.Await(ctx, w, "late", requirements.Evaluated.Satisfied)
		require.ErrorIs(t, err, fault.Timeout)
		require.Equal(t, []any{requirements.Insufficient, 2, 5}, []any{s.State, s.Available, s.Needed})
	})
}

// TestNewLeaderContinues checks that a new evaluator repeats no equal status
// and finds all changes made without an evaluator.
func TestNewLeaderContinues(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		stop := w.run("a")
		w.leadership.elect("a")
		w.register("storage", "s1", "s2")
		w.require("store", "storage", 2)
		w.require("gone", "storage", 1)
		w.require("more", "storage", 3)
		synctest.Wait()
		before := w.keys()
		require.Len(t, before, 3)
		stop()
		defer w.run("b")()
		w.leadership.elect("b")
		synctest.Wait()
		require.Equal(t, before, w.keys())
		w.leadership.elect("b")
		synctest.Wait()
		require.Equal(t, before, w.keys())

		w.leadership.elect("")
		synctest.Wait()
		w.do(&ops.DeleteRequirement{Name: "gone"})
		w.register("storage", "s3")
		synctest.Wait()
		require.Equal(t, before, w.keys(), "nobody directs")
		w.leadership.elect("b")
		require.Equal(t, "satisfied 3/3", w.standing("more"))
		require.Equal(t, "satisfied 3/2", w.standing("store"))
		require.NotContains(t, w.keys(), requirements.StatusKey("gone"))
		was, _ := requirements.DecodeStatus(before[requirements.StatusKey("store")].Value)
		now, _ := requirements.DecodeStatus(w.keys()[requirements.StatusKey("store")].Value)
		require.Equal(t, was.Revision, now.Revision, "it has been satisfied all the time")
	})
}

// TestForeignStatusesAreCorrected covers late statuses of a deposed evaluator,
// forged and deleted statuses, and statuses without a requirement.
func TestForeignStatusesAreCorrected(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		defer w.run("a")()
		w.leadership.elect("a")
		of := w.require("store", "storage", 2)
		w.register("storage", "s1")
		time.Sleep(settleTime)
		require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		right := w.keys()[requirements.StatusKey("store")].Value
		late := requirements.Status{State: requirements.Satisfied, Needed: 2, Available: 2, Revision: 1, Of: of}
		for _, wrong := range []string{string(late.Encode()), "?", "", `{"state":"pending"}`} {
			w.write(requirements.StatusKey("store"), wrong)
			require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		}
		now, err := requirements.DecodeStatus(w.keys()[requirements.StatusKey("store")].Value)
		require.NoError(t, err)
		was, _ := requirements.DecodeStatus(right)
		now.Revision = was.Revision
		require.Equal(t, was, now)
		all := coord.Under(requirements.StatusPrefix)
		w.do(&ops.Txn{Then: []ops.Step{{Delete: &all}}})
		require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		w.write(requirements.StatusKey("nothing"), string(right))
		w.write(requirements.StatusKey("no/name"), "x")
		synctest.Wait()
		require.Len(t, w.keys(), 1)
	})
}

// TestDeposed checks that the late write of a deposed evaluator changes
// nothing.
func TestDeposed(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		late := &slow{fixture: w, held: make(chan *coordv1.Command)}
		d := New(Config{Counter: instances.Counter, Self: "a", Leader: w.leadership, Member: late})
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		defer func() { cancel(); <-done }()
		w.leadership.elect("a")
		w.require("store", "storage", 1)
		command := <-late.held
		defer w.run("b")()
		w.leadership.elect("b")
		w.register("storage", "s1")
		require.Equal(t, "satisfied 1/1", w.standing("store"))
		result, err := w.Execute(w.t.Context(), command)
		require.NoError(t, err)
		require.ErrorIs(t, coord.Unmet(result.GetTxn()), fault.Conflict)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
	})
}

// slow passes commands on and never answers.
type slow struct {
	*fixture
	held chan *coordv1.Command
}

func (s *slow) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	select {
	case s.held <- cmd:
		<-ctx.Done()
	case <-ctx.Done():
	}
	return nil, fault.Wrap("slow", ctx.Err())
}

// TestTogether checks that one command stores many statuses, and that a
// rejected status does not block others.
func TestTogether(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		for i := range 100 {
			w.require(fmt.Sprintf("r%02d", i), "storage", 1)
		}
		// A lock of this name occupies the status key of the requirement named
		// like its first claim.
		w.do(&ops.Lock{Name: "requirements-status", Lease: w.lease})
		inTheWay := coord.LockKey("requirements-status", w.lease)[len(requirements.StatusPrefix):]
		w.require(inTheWay, "storage", 1)
		defer w.run("a")()
		w.leadership.elect("a")
		synctest.Wait()
		require.Len(t, w.keys(), 101)
		require.Equal(t, "pending 0/1", w.standing(inTheWay))
		w.do(&ops.DeleteRequirement{Name: inTheWay})
		synctest.Wait()

		before := w.batches
		w.register("storage", "s1")
		require.Equal(t, "satisfied 1/1", w.standing("r99"))
		require.Equal(t, "satisfied 1/1", w.standing("r00"))
		require.Equal(t, before+1, w.batches)
		time.Sleep(time.Hour)
		require.Equal(t, before+1, w.batches, "nothing is tried again and again")
	})
}

// TestOutage checks that evaluation continues after an outage of the group.
func TestOutage(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		defer w.run("a")()
		w.leadership.elect("a")
		w.require("store", "storage", 1)
		require.Equal(t, "insufficient_nodes 0/1", w.standing("store"))
		w.register("storage", "s1")
		w.Halt("a majority")
		time.Sleep(time.Minute)
		w.Resume()
		time.Sleep(2 * maxBackOff)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
	})
}

// TestCompacted checks that an evaluator behind the compacted history reads
// everything again.
func TestCompacted(t *testing.T) {
	inTime(t, func(w *fixture) {
		t := w.t
		gate := &slowReader{fixture: w, open: make(chan struct{})}
		d := New(Config{Counter: instances.Counter, Self: "a", Leader: w.leadership, Member: gate})
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		defer func() { cancel(); <-done }()
		w.leadership.elect("a")
		synctest.Wait()
		r := w.require("store", "storage", 1)
		w.register("storage", "s1")
		_, _, err := ops.Of(w).Do(w.t.Context(), ops.Command{Owner: "app", Op: &ops.Compact{Revision: r}})
		require.NoError(t, err)
		close(gate.open)
		time.Sleep(maxBackOff)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
	})
}

// slowReader delays its watch until open.
type slowReader struct {
	*fixture
	open chan struct{}
}

func (s *slowReader) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	<-s.open
	return s.Solo.Watch(ctx, w, send)
}
