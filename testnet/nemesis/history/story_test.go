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

// TestWhatIsWrongIsFound plants one violation after the other.
func TestWhatIsWrongIsFound(t *testing.T) {
	planted := []struct {
		name, rule string
		plant      func(*testing.T, *story)
	}{
		{"stale read", "H1", func(t *testing.T, s *story) {
			i := s.find(t, func(o Op) bool { return o.Kind == Read && o.Lock == "" && o.Value != "" })
			s.Ops[i].Value = "v1000000"
			for _, o := range s.Ops[:i] {
				if o.Object == s.Ops[i].Object && o.Outcome == OK && (o.Kind == Put || o.Kind == Swap) {
					s.Ops[i].Value = o.Value // the oldest
					return
				}
			}
		}},
		{"read of what was never written", "H1", func(t *testing.T, s *story) {
			i := s.find(t, func(o Op) bool { return o.Kind == Read && o.Lock == "" })
			s.Ops[i].Value = "v1000000"
		}},
		{"swap that was refused without reason", "H1", func(t *testing.T, s *story) {
			s.at += 10000
			s.read("register/0", "")
			o := s.op(Op{Kind: Swap, Object: "register/0", Value: "v1000000", Old: s.values["register/0"].Value})
			o.Call, o.Return, o.Outcome = s.at+10000, s.at+10001, Refused
			s.done(o)
		}},
		{"swap of another value", "H1", func(t *testing.T, s *story) {
			s.Ops[s.find(t, known(Swap))].Old = "another"
		}},
		{"two hold a lock", "H2", func(t *testing.T, s *story) {
			first := s.acquire(Try, "tried")
			second := s.op(Op{Kind: Try, Object: "tried", Mode: Exclusive, Token: first.Token + 1})
			second.Call, second.Return = first.Return+1000, first.Return+2000
			s.done(second)
			s.done(Op{ID: 1000000, Kind: Unlock, Object: "tried", Token: first.Token, Outcome: OK, Call: second.Return + 1000, Return: second.Return + 2000})
		}},
		{"try refused of a lock that is free", "H2", func(t *testing.T, s *story) {
			o := s.op(Op{Kind: Try, Object: "tried", Mode: Exclusive})
			o.Call, o.Return, o.Outcome = s.at+10000, s.at+10001, Refused
			s.done(o)
		}},
		{"write under a lock that another got since", "H3", stale(Guarded)},
		{"the same, by the tokens", "L2", stale(Guarded)},
		{"write outside with a stale token", "L2", stale(Fenced)},
		{"read of what an earlier holder wrote", "H3", func(t *testing.T, s *story) {
			i := s.find(t, func(o Op) bool { return o.Kind == Read && o.Lock != "" && o.Value != "" })
			first := s.find(t, known(Guarded))
			for j, o := range s.Ops {
				if o.Kind == Guarded && o.Outcome == OK {
					first = j
					break
				}
			}
			s.Ops[i].Value = s.Ops[first].Value
		}},
		{"answer of an old revision", "R2", func(t *testing.T, s *story) {
			s.Ops[s.find(t, known(Read))].Revision = 1
		}},
		{"write at a revision that was there", "R2", func(t *testing.T, s *story) {
			i := s.find(t, known(Put))
			for _, o := range s.Ops {
				if o.Outcome == OK && o.Return < s.Ops[i].Call && o.Revision > 0 {
					s.Ops[i].Revision = o.Revision
				}
			}
		}},
		{"token not above the last", "L1", func(t *testing.T, s *story) {
			s.Ops[s.find(t, known(Lock))].Token = 1
		}},
		{"token given twice", "L1", func(t *testing.T, s *story) {
			i := s.find(t, known(Lock))
			again := s.Ops[i]
			again.ID = 1000000
			s.Ops = append(s.Ops, again)
		}},
		{"write that took effect after its lock was lost", "L2", func(t *testing.T, s *story) {
			o := s.Ops[s.find(t, known(Guarded))]
			i := s.eventOf(t, o)
			for s.Events[i].Lock != o.Lock || !s.Events[i].Deleted { // let the claim end before
				s.Events[i], s.Events[i+1] = s.Events[i+1], s.Events[i]
				i++
				if s.Events[i-1].Lock == o.Lock && s.Events[i-1].Deleted {
					break
				}
			}
		}},
		{"grant out of turn", "L7", func(t *testing.T, s *story) {
			i := s.find(t, known(Lock))
			for j := i + 1; ; j++ {
				if known(Lock)(s.Ops[j]) {
					s.Ops[i].Return = s.Ops[j].Return + 1
					return
				}
			}
		}},
		{"acknowledged write that is lost", "D1", func(t *testing.T, s *story) {
			i := s.eventOf(t, s.Ops[s.find(t, known(Put))])
			s.Events = append(s.Events[:i], s.Events[i+1:]...)
		}},
		{"acknowledged write at another revision", "D1", func(t *testing.T, s *story) {
			s.Events[s.eventOf(t, s.Ops[s.find(t, known(Put))])].Revision++
		}},
		{"refused write that was done", "D1", func(t *testing.T, s *story) {
			o := s.Ops[s.find(t, func(o Op) bool { return o.Kind == Swap && o.Outcome == Refused })]
			s.event(Event{Key: o.Object, Value: o.Value, Create: 1, Version: 1000})
		}},
		{"acknowledged lock without a claim", "D1", func(t *testing.T, s *story) {
			s.Events[s.eventOf(t, s.Ops[s.find(t, known(Lock))])].Value = "0"
		}},
		{"write done twice", "E1", func(t *testing.T, s *story) {
			e := s.Events[s.eventOf(t, s.Ops[s.find(t, known(Put))])]
			e.Version++
			s.event(e)
		}},
	}
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			for seed := range uint64(5) {
				s := tell(seed, 300)
				p.plant(t, s)
				found := violated(s.History)
				require.Contains(t, found, p.rule, "seed %d: %v", seed, found)
			}
		})
	}
}

// stale accepts a write of a kind long after it was tried.
func stale(kind Kind) func(*testing.T, *story) {
	return func(t *testing.T, s *story) {
		i := s.find(t, known(kind))
		s.Ops[i].Call, s.Ops[i].Return = s.at+10000, s.at+10001
	}
}

// TestWhatCannotBeDecidedIsNotPassed: without time there is no proof.
func TestWhatCannotBeDecidedIsNotPassed(t *testing.T) {
	s := newStory(1)
	var ops []Op
	for range 60 {
		o := s.op(Op{Kind: Put, Object: "k"})
		o.Value, o.Call, o.Return = fmt.Sprint(o.ID), 0, time.Hour
		ops = append(ops, o)
	}
	r := s.op(Op{Kind: Read, Object: "k", Value: "nowhere"})
	r.Call, r.Return = time.Hour+1, time.Hour+2
	found := Check(History{Ops: append(ops, r)}, time.Now, time.Nanosecond)
	require.NotEmpty(t, found[0].Violations)
}
