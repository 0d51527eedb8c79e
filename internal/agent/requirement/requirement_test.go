package requirement

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// throne is who leads.
type throne struct {
	mu      sync.Mutex
	term    uint64
	leader  string
	changed chan struct{}
}

func (t *throne) Leading() (uint64, string, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.term, t.leader, t.changed
}

func (t *throne) seat(leader string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.term, t.leader = t.term+1, leader
	close(t.changed)
	t.changed = make(chan struct{})
}

// world is a group, directors at its peers, and a peer that registers.
type world struct {
	*coordtest.Solo
	t       *testing.T
	throne  *throne
	lease   coord.LeaseID
	batches int // commands that wrote verdicts
}

// inTime runs a test in the virtual time of a bubble.
func inTime(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, throne: &throne{changed: make(chan struct{})}, Solo: coordtest.New(coordtest.Config{
			Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		})}
		w.lease = w.do(&coord.LeaseGrant{TTL: 24 * time.Hour.Milliseconds()}).Lease
		test(w)
	})
}

// Do counts what directors write.
func (w *world) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	if cmd.Owner != "app" {
		w.batches++
	}
	return w.Solo.Do(ctx, cmd)
}

func (w *world) do(op coord.Op) coord.Result {
	w.t.Helper()
	r, _, err := w.Do(w.t.Context(), coord.Command{Owner: "app", Op: op})
	require.NoError(w.t, err)
	return r
}

// run runs a director at a peer until stop.
func (w *world) run(self string) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	d := New(Config{Self: self, Leader: w.throne, Member: w})
	go func() { defer close(done); d.Run(ctx) }()
	return func() { cancel(); <-done }
}

// register puts instances of a service into the directory.
func (w *world) register(service string, ids ...string) {
	w.t.Helper()
	op := &coord.RegisterBatch{Lease: w.lease, Generation: 1}
	for _, id := range ids {
		i := &instance.Instance{
			Key:  instance.Key{Namespace: "default", Service: service, ID: id},
			Spec: instance.Spec{Host: "10.0.0.1", Port: 80}, Status: instance.StatusUp,
		}
		op.Puts = append(op.Puts, coord.Entry{Key: coord.DirectoryKey(i.Key), Value: instance.Marshal(i)})
	}
	require.Empty(w.t, w.do(op).Foreign)
}

func (w *world) deregister(service, id string) {
	key := coord.DirectoryKey(instance.Key{Namespace: "default", Service: service, ID: id})
	w.do(&coord.RegisterBatch{Lease: w.lease, Generation: 1, Deletes: []string{key}})
}

func (w *world) require(name, service string, least int) coord.Revision {
	w.t.Helper()
	return w.do(&coord.SetRequirement{Requirement: coord.Requirement{
		Name: name, Service: instance.Name{Namespace: "default", Service: service}, Min: least,
	}}).Revision
}

// standing waits for what is under way and tells how a requirement stands.
func (w *world) standing(name string) string {
	w.t.Helper()
	synctest.Wait()
	s, _, err := coord.GetRequirement(w.t.Context(), w, name)
	if fault.KindOf(err) == fault.NotFound {
		return "none"
	}
	require.NoError(w.t, err)
	return fmt.Sprintf("%s %d/%d", s.State, s.Available, s.Needed)
}

// keys are the verdicts that are written.
func (w *world) keys() map[string]*coord.KeyValue {
	page, _, err := w.Range(w.t.Context(), coord.Query{Span: coord.Under(coord.RequirementStatusPrefix)}, coord.Linearizable)
	require.NoError(w.t, err)
	all := map[string]*coord.KeyValue{}
	for _, kv := range page.Keys {
		all[kv.Key] = kv
	}
	return all
}

// write writes keys as anybody can.
func (w *world) write(key, value string) {
	w.do(&coord.Write{Then: []coord.Change{{Put: &coord.Put{Key: key, Value: []byte(value)}}}})
}

func TestVerdicts(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		defer w.run("a")()
		w.require("store", "storage", 2)
		require.Equal(t, "pending 0/2", w.standing("store"), "nobody leads")
		w.throne.seat("a")
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
		w.do(&coord.DeleteRequirement{Name: "store"})
		require.Equal(t, "none", w.standing("store"))
		require.Empty(t, w.keys())
	})
}

// TestProblem: a requirement that this version cannot understand says so.
func TestProblem(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		defer w.run("a")()
		w.throne.seat("a")
		w.do(&coord.SetRequirement{Requirement: coord.Requirement{
			Name: "odd", Service: instance.Name{Namespace: "default", Service: "s"}, Min: 1, Selector: instance.Selector{Version: "?"},
		}})
		require.Equal(t, "insufficient_nodes 0/1", w.standing("odd"))
		s, _, err := coord.GetRequirement(w.t.Context(), w, "odd")
		require.NoError(t, err)
		require.NotEmpty(t, s.Problem)
	})
}

// TestWaiters: who waits is woken by an instance that comes late, whoever leads then, and by nothing else; one whose
// requirement is deleted is told.
func TestWaiters(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		defer w.run("a")()
		defer w.run("b")()
		w.throne.seat("a")
		w.require("store", "storage", 2)
		w.require("doomed", "storage", 9)
		type outcome struct {
			coord.EvaluatedRequirement
			err   error
			after time.Duration
		}
		await := func(name string) <-chan outcome {
			got, began := make(chan outcome, 1), time.Now()
			go func() {
				s, _, err := coord.AwaitRequirement(w.t.Context(), w, name, coord.EvaluatedRequirement.Satisfied)
				got <- outcome{s, err, time.Since(began)}
			}()
			return got
		}
		satisfied, doomed := await("store"), await("doomed")
		w.register("storage", "s1")
		time.Sleep(time.Hour)
		require.Empty(t, satisfied)
		w.throne.seat("")
		synctest.Wait()
		w.register("storage", "s2")
		time.Sleep(time.Hour)
		require.Empty(t, satisfied, "nobody judges")
		w.throne.seat("b")
		got := <-satisfied
		require.NoError(t, got.err)
		require.Equal(t, []any{coord.RequirementSatisfied, 2, 2 * time.Hour}, []any{got.State, got.Available, got.after})
		w.do(&coord.DeleteRequirement{Name: "doomed"})
		gone := <-doomed
		require.ErrorIs(t, gone.err, fault.NotFound)
		require.Equal(t, "name", fault.FieldOf(gone.err))
		require.Equal(t, 2, gone.Available, "as it last was")

		w.require("late", "storage", 5)
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		s, _, err := coord.AwaitRequirement(ctx, w, "late", coord.EvaluatedRequirement.Satisfied)
		require.ErrorIs(t, err, fault.Timeout)
		require.Equal(t, []any{coord.RequirementInsufficient, 2, 5}, []any{s.State, s.Available, s.Needed})
	})
}

// TestTakesOver: a director that takes over, or begins again, writes nothing that is so already; what changed while
// nobody directed it finds.
func TestTakesOver(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		stop := w.run("a")
		w.throne.seat("a")
		w.register("storage", "s1", "s2")
		w.require("store", "storage", 2)
		w.require("gone", "storage", 1)
		w.require("more", "storage", 3)
		synctest.Wait()
		before := w.keys()
		require.Len(t, before, 3)
		stop()
		defer w.run("b")()
		w.throne.seat("b")
		synctest.Wait()
		require.Equal(t, before, w.keys())
		w.throne.seat("b")
		synctest.Wait()
		require.Equal(t, before, w.keys())

		w.throne.seat("")
		synctest.Wait()
		w.do(&coord.DeleteRequirement{Name: "gone"})
		w.register("storage", "s3")
		synctest.Wait()
		require.Equal(t, before, w.keys(), "nobody directs")
		w.throne.seat("b")
		require.Equal(t, "satisfied 3/3", w.standing("more"))
		require.Equal(t, "satisfied 3/2", w.standing("store"))
		require.NotContains(t, w.keys(), coord.RequirementStatusKey("gone"))
		was, _ := coord.DecodeRequirementStatus(before[coord.RequirementStatusKey("store")].Value)
		now, _ := coord.DecodeRequirementStatus(w.keys()[coord.RequirementStatusKey("store")].Value)
		require.Equal(t, was.Revision, now.Revision, "it has been satisfied all the time")
	})
}

// TestOthersAreCorrected: what is no word of this director does not last: that of one that was deposed, a
// forged one, none where there is one to be, one on no requirement.
func TestOthersAreCorrected(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		defer w.run("a")()
		w.throne.seat("a")
		of := w.require("store", "storage", 2)
		w.register("storage", "s1")
		time.Sleep(settleTime)
		require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		right := w.keys()[coord.RequirementStatusKey("store")].Value
		late := coord.RequirementStatus{State: coord.RequirementSatisfied, Needed: 2, Available: 2, Revision: 1, Of: of}
		for _, wrong := range []string{string(late.Encode()), "?", "", `{"state":"pending"}`} {
			w.write(coord.RequirementStatusKey("store"), wrong)
			require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		}
		now, err := coord.DecodeRequirementStatus(w.keys()[coord.RequirementStatusKey("store")].Value)
		require.NoError(t, err)
		was, _ := coord.DecodeRequirementStatus(right)
		now.Revision = was.Revision
		require.Equal(t, was, now)
		all := coord.Under(coord.RequirementStatusPrefix)
		w.do(&coord.Write{Then: []coord.Change{{Delete: &all}}})
		require.Equal(t, "insufficient_nodes 1/2", w.standing("store"))
		w.write(coord.RequirementStatusKey("nothing"), string(right))
		w.write(coord.RequirementStatusKey("no/name"), "x")
		synctest.Wait()
		require.Len(t, w.keys(), 1)
	})
}

// TestDeposed: a director that was deposed while it had something to write changes nothing that its successor wrote.
func TestDeposed(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		late := &slow{world: w, held: make(chan coord.Command)}
		d := New(Config{Self: "a", Leader: w.throne, Member: late})
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		defer func() { cancel(); <-done }()
		w.throne.seat("a")
		w.require("store", "storage", 1)
		command := <-late.held
		defer w.run("b")()
		w.throne.seat("b")
		w.register("storage", "s1")
		require.Equal(t, "satisfied 1/1", w.standing("store"))
		_, _, err := w.Do(w.t.Context(), command)
		require.ErrorIs(t, err, fault.Conflict)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
	})
}

// slow hands over its commands, and does not answer.
type slow struct {
	*world
	held chan coord.Command
}

func (s *slow) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	select {
	case s.held <- cmd:
		<-ctx.Done()
	case <-ctx.Done():
	}
	return coord.Result{}, coord.Header{}, fault.Wrap("slow", ctx.Err())
}

// TestTogether: many verdicts are one command, and one that cannot be written keeps no other back.
func TestTogether(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		for i := range 100 {
			w.require(fmt.Sprintf("r%02d", i), "storage", 1)
		}
		// A lock of the name "requirements-status" has keys there: that of its first claim is in the way of the requirement
		// of that name.
		w.do(&coord.Lock{Name: "requirements-status", Lease: w.lease})
		inTheWay := coord.LockKey("requirements-status", w.lease)[len(coord.RequirementStatusPrefix):]
		w.require(inTheWay, "storage", 1)
		defer w.run("a")()
		w.throne.seat("a")
		synctest.Wait()
		require.Len(t, w.keys(), 101)
		require.Equal(t, "pending 0/1", w.standing(inTheWay))
		w.do(&coord.DeleteRequirement{Name: inTheWay})
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

// TestOutage: a group that serves nothing for a while is directed again when it does.
func TestOutage(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		defer w.run("a")()
		w.throne.seat("a")
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

// TestCompacted: a director that is behind what the history has reads all anew.
func TestCompacted(t *testing.T) {
	inTime(t, func(w *world) {
		t := w.t
		gate := &slowReader{world: w, open: make(chan struct{})}
		d := New(Config{Self: "a", Leader: w.throne, Member: gate})
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx) }()
		defer func() { cancel(); <-done }()
		w.throne.seat("a")
		synctest.Wait()
		r := w.require("store", "storage", 1)
		w.register("storage", "s1")
		_, _, err := w.Do(w.t.Context(), coord.Command{Owner: "app", Op: &coord.Compact{Revision: r}})
		require.NoError(t, err)
		close(gate.open)
		time.Sleep(maxBackOff)
		require.Equal(t, "satisfied 1/1", w.standing("store"))
	})
}

// slowReader begins to watch when it may.
type slowReader struct {
	*world
	open chan struct{}
}

func (s *slowReader) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	<-s.open
	return s.Solo.Watch(ctx, w, send)
}
