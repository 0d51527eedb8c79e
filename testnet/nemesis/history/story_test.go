package history

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story makes a history as a group that keeps its promises would: it does everything at one
// moment between call and return.
type story struct {
	History
	rng      *rand.Rand
	at       time.Duration
	revision int64
	ids      int64
	values   map[string]Event  // by key
	holds    map[string]string // metadata of the claim that holds a lock
	claims   map[string]Event  // by lock
}

func newStory(seed uint64) *story {
	return &story{
		rng: rand.New(rand.NewPCG(seed, 0)), values: make(map[string]Event),
		holds: make(map[string]string), claims: make(map[string]Event),
	}
}

// op is done at a moment of its own; the moments follow each other, the calls and returns do not.
func (s *story) op(o Op) Op {
	s.at += time.Duration(1 + s.rng.IntN(1000))
	s.ids++
	o.ID, o.Client, o.Outcome = s.ids, s.rng.IntN(9), OK
	o.Call, o.Return = s.at-time.Duration(s.rng.IntN(900)), s.at+time.Duration(s.rng.IntN(900))
	return o
}

// done adds the operation. Now and then its client does not hear of what came of it.
func (s *story) done(o Op) {
	if o.Outcome == OK && s.rng.IntN(20) == 0 && (o.Kind == Put || o.Kind == Swap || o.Kind == Guarded) {
		o.Outcome, o.Revision = Unknown, 0
	}
	s.Ops = append(s.Ops, o)
}

func (s *story) event(e Event) Event {
	s.revision++
	e.Revision, e.Seen = s.revision, s.at+time.Duration(s.rng.IntN(3000))
	s.Events = append(s.Events, e)
	return e
}

// write puts a value that nobody wrote.
func (s *story) write(o Op) {
	last := s.values[o.Object]
	o.Value = fmt.Sprintf("v%d", o.ID)
	e := Event{Key: o.Object, Value: o.Value, Create: last.Create, Version: last.Version + 1, Replaces: last.Revision}
	if last.Version == 0 {
		e.Create = s.revision + 1
	}
	e = s.event(e)
	s.values[o.Object], o.Revision = e, e.Revision
	s.done(o)
}

func (s *story) read(key, lock string) {
	o := s.op(Op{Kind: Read, Object: key, Lock: lock})
	o.Value, o.Revision = s.values[key].Value, s.revision
	s.done(o)
}

func (s *story) swap(key string) {
	o := s.op(Op{Kind: Swap, Object: key, Old: s.values[key].Value})
	switch s.rng.IntN(3) {
	case 0:
		o.Old, o.Outcome, o.Value = "another", Refused, fmt.Sprintf("v%d", o.ID)
		s.done(o)
	case 1:
		o.Outcome, o.Value = Unknown, fmt.Sprintf("v%d", o.ID) // and it never came to the group
		s.done(o)
	default:
		s.write(o)
	}
}

// acquire takes a lock that is free. The claim before is given back, or its lease ends.
func (s *story) acquire(kind Kind, name string) Op {
	o := s.op(Op{Kind: kind, Object: name, Mode: Exclusive})
	e := Event{Key: name + "/1", Value: strconv.FormatInt(o.ID, 10), Create: s.revision + 1, Version: 1, Lock: name, Mode: Exclusive}
	s.claims[name] = s.event(e)
	o.Token = s.claims[name].Create
	s.done(o)
	return o
}

func (s *story) release(by Op) {
	o := s.op(Op{Kind: Unlock, Object: by.Object, Token: by.Token})
	o.Call = max(o.Call, by.Return) // by one who knows the token
	o.Return = max(o.Return, o.Call)
	s.at = max(s.at, o.Call)
	e := s.claims[by.Object]
	delete(s.claims, by.Object)
	e.Deleted, e.Replaces = true, e.Revision
	s.event(e)
	if s.rng.IntN(5) == 0 {
		o.Kind = Abandon
	}
	s.done(o)
}

// hold is a lock from beginning to end.
func (s *story) hold() {
	const name, key = "exclusive", "fenced"
	o := s.acquire(Lock, name)
	s.at = max(s.at, o.Return+1000)
	for range s.rng.IntN(3) {
		w := s.op(Op{Kind: Guarded, Object: key, Lock: name, Token: o.Token})
		w.Call = max(w.Call, o.Return)
		s.write(w)
		s.read(key, name)
		f := s.op(Op{Kind: Fenced, Object: "resource", Lock: name, Token: o.Token})
		f.Call = max(f.Call, o.Return)
		s.done(f)
	}
	s.at += 1000
	s.release(o)
	s.at += 2000
}

func (s *story) try() {
	o := s.acquire(Try, "tried")
	refused := s.op(Op{Kind: Try, Object: "tried", Mode: Exclusive})
	refused.Outcome = Refused
	s.done(refused)
	s.release(o)
}

func tell(seed uint64, length int) *story {
	s := newStory(seed)
	for range length {
		key := fmt.Sprintf("register/%d", s.rng.IntN(2))
		switch s.rng.IntN(6) {
		case 0:
			s.write(s.op(Op{Kind: Put, Object: key}))
		case 1:
			s.swap(key)
		case 2, 3:
			s.read(key, "")
		case 4:
			s.hold()
		default:
			s.try()
		}
	}
	return s
}

func violated(h History) map[string]string {
	found := make(map[string]string)
	for _, v := range Check(h, time.Now, time.Minute) {
		for _, violation := range v.Violations {
			found[v.Rule] += violation.String() + "\n"
		}
	}
	return found
}

func TestWhatIsRightIsFoundRight(t *testing.T) {
	for seed := range uint64(50) {
		s := tell(seed, 300)
		require.Empty(t, violated(s.History), "seed %d", seed)
	}
}

// find gives the index of the n-th operation that fits.
func (s *story) find(t *testing.T, fits func(Op) bool) int {
	var all []int
	for i, o := range s.Ops {
		if fits(o) {
			all = append(all, i)
		}
	}
	require.Greater(t, len(all), 2)
	return all[len(all)/2]
}

func known(kind Kind) func(Op) bool {
	return func(o Op) bool { return o.Kind == kind && o.Outcome == OK }
}

// eventOf gives the index of the event that an operation made.
func (s *story) eventOf(t *testing.T, o Op) int {
	for i, e := range s.Events {
		if e.Lock == "" && e.Value == o.Value || e.Lock != "" && e.Value == o.metadata() && !e.Deleted {
			return i
		}
	}
	require.Fail(t, "no event", o)
	return -1
}
