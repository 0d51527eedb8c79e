package simulation

import (
	"container/heap"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// scheduler is virtual time: scheduled events, in order. True time begins at 0; it is invisible inside.
type scheduler struct {
	rng   *rand.Rand
	now   time.Duration
	queue events
	made  uint64
	procs []*proc
	fail  error    // the first breach: the scheduler stops
	story []string // recent events, for the reader of a breach
}

func newScheduler(seed uint64) *scheduler {
	return &scheduler{rng: rand.New(rand.NewPCG(seed, 0x6b6c6173696d))}
}

// event is scheduled at a time; events of one time run in the order of their creation.
type event struct {
	at    time.Duration
	order uint64
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{}
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *scheduler) at(t time.Duration, do func()) {
	w.made++
	heap.Push(&w.queue, event{at: max(t, w.now), order: w.made, do: do})
}

func (w *scheduler) after(d time.Duration, do func()) { w.at(w.now+d, do) }

// run lets time pass until an instant or a breach.
func (w *scheduler) run(until time.Duration) {
	for len(w.queue) > 0 && w.fail == nil && w.queue[0].at <= until {
		next := heap.Pop(&w.queue).(event)
		w.now = next.at
		next.do()
	}
	w.now = max(w.now, until)
}

// breach records a broken promise.
func (w *scheduler) breach(rule, format string, args ...any) {
	w.must(fault.New("check."+rule, fault.Internal, format, args...))
}

// must records an error as a breach.
func (w *scheduler) must(err error) {
	if err != nil && w.fail == nil {
		w.fail = fmt.Errorf("at %v: %w", w.now, err)
		w.tell("BREACH %v", err)
	}
}

// tell adds to the story, of which the end is kept.
func (w *scheduler) tell(format string, args ...any) {
	if len(w.story) >= 400 {
		w.story = w.story[200:]
	}
	w.story = append(w.story, fmt.Sprintf("%12v ", w.now)+fmt.Sprintf(format, args...))
}

// between draws a duration.
func (w *scheduler) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}

// chance draws true with a probability.
func (w *scheduler) chance(p float64) bool { return w.rng.Float64() < p }

// proc is sequential behaviour under the scheduler: a coroutine, of which one runs at a time.
type proc struct {
	*scheduler
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
}

// stopped unwinds a proc after the end of its scheduler.
type stopped struct{}

// spawn starts a proc now.
func (w *scheduler) spawn(body func(p *proc)) {
	p := &proc{scheduler: w}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(stopped{}) {
				panic(r)
			}
		}()
		p.yield = yield
		body(p)
	})
	w.procs = append(w.procs, p)
	w.after(0, func() { p.next() })
}

// end stops all procs.
func (w *scheduler) end() {
	for _, p := range w.procs {
		p.stop()
	}
}

// park waits for a call of the function given to arm, and returns its first argument.
func park[T any](p *proc, arm func(wake func(T))) (got T) {
	woken := false
	arm(func(v T) {
		if woken {
			return
		}
		woken, got = true, v
		p.after(0, func() { p.next() })
	})
	if !p.yield(struct{}{}) {
		panic(stopped{})
	}
	return got
}

// sleep waits.
func (p *proc) sleep(d time.Duration) {
	park(p, func(wake func(struct{})) { p.after(d, func() { wake(struct{}{}) }) })
}
