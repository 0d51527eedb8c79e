package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Each check must refuse a bad example and accept a good one. The checks of packages audit and history have tests there.

func rule(w *scheduler) string { return fault.OpOf(w.fail) }

func TestBeliefs(t *testing.T) {
	alone := func(token coord.Token, until time.Duration) *belief {
		return &belief{session: &session{id: coord.LeaseID(token), rate: 1, deadline: until}, token: token}
	}
	shared := func(token coord.Token) *belief {
		b := alone(token, time.Hour)
		b.mode = coord.Shared
		return b
	}
	permit := func(token coord.Token) *belief {
		b := alone(token, time.Hour)
		b.mode, b.permits = coord.Permit, 2
		return b
	}
	released := alone(1, time.Hour)
	released.released = true
	for _, c := range []struct {
		name string
		held []*belief
		want string
	}{
		{"one after the other", []*belief{alone(1, 0), alone(2, time.Hour)}, ""},
		{"given back", []*belief{released, alone(2, time.Hour)}, ""},
		{"both", []*belief{alone(1, time.Second), alone(2, time.Hour)}, "check.B1"},
		{"readers", []*belief{shared(1), shared(2), shared(3)}, ""},
		{"a reader and a writer", []*belief{shared(1), alone(2, time.Hour)}, "check.B1"},
		{"two permits", []*belief{permit(1), permit(2)}, ""},
		{"three permits of two", []*belief{permit(1), permit(2), permit(3)}, "check.B1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBeliefs(newScheduler(1))
			for _, h := range c.held {
				b.holds("lock", h)
			}
			require.Equal(t, c.want, rule(b.scheduler))
		})
	}
	b := newBeliefs(newScheduler(1))
	b.sessions[1], b.sessions[2] = alone(1, 0).session, alone(2, time.Second).session
	b.expired(1)
	require.Empty(t, rule(b.scheduler))
	b.expired(2)
	require.Equal(t, "check.L4", rule(b.scheduler))
}

// entry applies a command to a member's machine.
func entry(index, term uint64, m *machine.Machine, cmd *coordv1.Command) replica.Applied {
	result, effects := m.Apply(index, term, cmd)
	return replica.Applied{Index: index, Term: term, Command: cmd, Result: result, Effects: effects}
}

func TestOracle(t *testing.T) {
	open, grant := coordtest.Command("a", &apiv1.OpenClientRequest{}), coordtest.Command("a", &apiv1.LeaseGrantRequest{TtlMs: 5000})
	expire := coordtest.Command("", &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{{Id: 1, Granted: 1}}})
	for _, c := range []struct {
		name, want string
		happens    func(o *oracle, m *machine.Machine)
	}{
		{"members agree", "", func(o *oracle, m *machine.Machine) {
			a := entry(1, 1, m, grant)
			o.applied("a", a)
			o.applied("b", a)
		}},
		{"members apply different commands", "check.C1", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, grant))
			o.applied("b", entry(1, 1, machine.New(), open))
		}},
		{"members apply entries of different terms", "check.C1", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, grant))
			o.applied("b", entry(1, 2, machine.New(), grant))
		}},
		{"a member makes something else of an entry", "check.C1", func(o *oracle, m *machine.Machine) {
			a := entry(1, 1, m, grant)
			a.Result.Answer.GetLeaseGrant().Id++
			o.applied("a", a)
		}},
		{"an entry is applied where there was none", "check.C1", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(2, 1, m, grant))
			o.applied("b", entry(1, 1, machine.New(), grant))
		}},
		{"a term has two leaders", "check.C2", func(o *oracle, _ *machine.Machine) {
			o.led(3, 1)
			o.led(4, 2)
			o.led(3, 2)
		}},
		{"an answer comes before the entry", "check.C3", func(o *oracle, _ *machine.Machine) { o.answered(call{1, 1}, ops.Result{}) }},
		{"an answer is another's", "check.C3", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, open))
			again := coordtest.Once(1, 1, proto.CloneOf(grant))
			o.applied("a", entry(2, 1, m, again))
			o.answered(call{1, 1}, ops.Result{Lease: 9})
		}},
		{"a lease ends in time", "", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, grant))
			o.now += 5 * time.Second
			o.applied("a", entry(2, 1, m, expire))
		}},
		{"a lease ends too early", "audit.L4", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, grant))
			o.now += 4 * time.Second
			o.applied("a", entry(2, 1, m, expire))
		}},
		{"a lease ends too early for its leader", "check.L4", func(o *oracle, m *machine.Machine) {
			o.applied("a", entry(1, 1, m, grant))
			o.now += 4 * time.Second
			o.promoted(1)
			o.now += 4 * time.Second
			o.applied("a", entry(2, 1, m, expire))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOracle(newScheduler(1), new(figures))
			o.ended = func(coord.LeaseID, []*coord.KeyValue) {}
			c.happens(o, machine.New())
			require.Equal(t, c.want, rule(o.scheduler))
		})
	}
}

func TestOracleComparesStates(t *testing.T) {
	grant := coordtest.Command("a", &apiv1.LeaseGrantRequest{TtlMs: 5000})
	o, m := newOracle(newScheduler(1), new(figures)), machine.New()
	for i := range uint64(every) {
		o.applied("a", entry(i+1, 1, m, grant))
	}
	o.compare("a", m)
	require.Empty(t, rule(o.scheduler))
	other := machine.New()
	other.Apply(every, 1, grant)
	o.compare("b", other)
	require.Equal(t, "check.C1", rule(o.scheduler))
}
