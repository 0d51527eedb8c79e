package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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

// request is a client's request to a member: one field is set.
type request struct {
	command *coordv1.Command
	read    func(*machine.Machine) any // linearizable
	local   func(*machine.Machine) any // from the member's own state
	keep    []coord.LeaseID
	sent    time.Duration // true time
}

// reply is a member's answer.
type reply struct {
	result ops.Result
	value  any
	kept   []machine.Renewal
	err    error // reason of a failure
}

// client is a program that uses the group.
type client struct {
	*cluster
	name     string
	rate     float64
	target   int // member that it asks
	id       coord.ClientID
	sequence uint64
	sessions map[coord.LeaseID]*session

	generation uint64 // of its publications
}

func (c *cluster) newClient(i int) *client {
	return &client{
		cluster: c, name: fmt.Sprint(c.place, "client-", i), rate: c.drift(), target: c.rng.IntN(len(c.nodes)),
		sessions: make(map[coord.LeaseID]*session),
	}
}

// local returns the time on the client's clock.
func (c *client) local() time.Duration { return time.Duration(float64(c.now) * c.rate) }

// ask sends a request to the present target, and waits for the answer with a limit.
func (c *client) ask(p *proc, r request, patience time.Duration) (reply, bool) {
	to := c.nodes[c.target]
	r.sent = c.now
	got := park(p, func(wake func(*reply)) {
		c.net.send(c.name, to.name, func() {
			to.serve(c.name, r, func(answer reply) {
				c.net.send(to.name, c.name, func() { wake(&answer) })
			})
		})
		c.after(patience, func() { wake(nil) })
	})
	if got == nil {
		c.target = c.rng.IntN(len(c.nodes))
		return reply{}, false
	}
	if got.err != nil {
		c.redirect(p, got.err)
		return reply{}, false
	}
	return *got, true
}

// redirect follows the hint of an answer.
func (c *client) redirect(p *proc, err error) {
	c.target = c.rng.IntN(len(c.nodes))
	if not := new(replica.NotLeader); errors.As(err, &not) && not.Leader.ID != 0 {
		if n := c.nodeOf(not.Leader.ID); n >= 0 {
			c.target = n
		}
	}
	p.sleep(c.between(10*time.Millisecond, 100*time.Millisecond))
}

// attempt is the client's limit for one answer.
const attempt = time.Second

// do repeats a command under one sequence until an answer or the end of patience; then it returns false, and
// the command may still be applied.
func (c *client) do(p *proc, op proto.Message, patience time.Duration) (call, ops.Result, bool) {
	end := c.now + patience
	for c.id == 0 {
		if c.now > end {
			return call{}, ops.Result{}, false
		}
		opened := coordtest.Command(c.name, &apiv1.OpenClientRequest{})
		if answer, ok := c.ask(p, request{command: opened}, attempt); ok && answer.result.Err == nil {
			c.id, c.sequence = answer.result.Client, 0
		}
	}
	c.sequence++
	this := call{c.id, c.sequence}
	cmd := coordtest.Once(c.id, c.sequence, coordtest.Command(c.name, op))
	for c.now <= end {
		answer, ok := c.ask(p, request{command: cmd}, attempt)
		if !ok {
			continue
		}
		c.figures.commands++
		if field := fault.FieldOf(answer.result.Err); answer.result.Err != nil && (field == "client" || field == "sequence") {
			c.id = 0 // the group has forgotten this client
		} else {
			c.oracle.answered(this, answer.result)
		}
		return this, answer.result, true
	}
	c.figures.unknown++
	return this, ops.Result{}, false
}

// get reads from any member's present state.
func (c *client) get(p *proc, read func(*machine.Machine) any, patience time.Duration) (any, bool) {
	for end := c.now + patience; c.now <= end; {
		if c.chance(0.5) {
			c.target = c.rng.IntN(len(c.nodes))
		}
		if answer, ok := c.ask(p, request{read: read}, attempt); ok {
			c.figures.reads++
			return answer.value, true
		}
	}
	return nil, false
}

// lease makes a session.
func (c *client) lease(p *proc, ttl time.Duration) *session {
	sent := c.local()
	_, r, ok := c.do(p, &apiv1.LeaseGrantRequest{TtlMs: ttl.Milliseconds()}, 5*time.Second)
	if !ok || r.Err != nil || c.over() {
		return nil
	}
	s := &session{id: r.Lease, ttl: time.Duration(r.TTL) * time.Millisecond, rate: c.rate}
	s.sent(sent)
	if !s.lives(c.now) {
		return nil
	}
	c.sessions[s.id] = s
	c.oracle.beliefs.sessions[s.id] = s
	return s
}

// close ends a session.
func (c *client) close(s *session) {
	s.closed = true
	delete(c.sessions, s.id)
}

// keepAlive renews all sessions, three times in the shortest time to live.
func (c *client) keepAlive(p *proc) {
	for {
		wait := 500 * time.Millisecond
		ids := slices.Sorted(maps.Keys(c.sessions))
		if len(ids) > 0 {
			sent, published := c.local(), make(map[coord.LeaseID]uint64)
			for _, id := range ids {
				published[id] = c.sessions[id].published
			}
			group := c.cluster
			if answer, ok := c.ask(p, request{keep: ids}, 700*time.Millisecond); ok && c.cluster == group {
				c.renewed(answer.kept, sent, published)
			} else {
				wait = 50 * time.Millisecond
			}
		}
		p.sleep(wait)
	}
}

func (c *client) renewed(kept []machine.Renewal, local time.Duration, published map[coord.LeaseID]uint64) {
	for _, k := range kept {
		s := c.sessions[k.ID]
		switch {
		case s == nil:
		case !s.lives(c.now) || k.TTL == 0:
			c.close(s)
		default:
			s.sent(local)
			c.told(k, published[k.ID])
			c.figures.renewals++
		}
	}
}
