package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plant is a violation and the rule that must find it.
type plant struct {
	name, rule string
	sow        func(*testing.T, *story)
}

// TestWhatIsWrongIsFound plants one violation after the other.
func TestWhatIsWrongIsFound(t *testing.T) {
	for _, p := range append(append(disorders(), numbers()...), losses()...) {
		t.Run(p.name, func(t *testing.T) {
			for seed := range uint64(5) {
				s := tell(seed, 300)
				p.sow(t, s)
				found := violated(s.History)
				require.Contains(t, found, p.rule, "seed %d: %v", seed, found)
			}
		})
	}
}

// disorders are histories that no order explains.
func disorders() []plant {
	return []plant{
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
	}
}

// numbers are revisions and tokens that cannot be.
func numbers() []plant {
	return []plant{
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
	}
}

// losses are answers that the events do not confirm.
func losses() []plant {
	return []plant{
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
