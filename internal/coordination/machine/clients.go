package machine

import (
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
)
import "github.com/blackhole/blackhole/pkg/coord"

// client is what is kept of somebody whose commands are applied exactly once.
type client struct {
	owner    string
	seen     uint64       // index of its last command, or of its opening
	sequence uint64       // of its last command; 0 before the first
	result   coord.Result // of that command
}

// clientOf finds the client of a command that is to be applied or answered from memory.
func (m *Machine) clientOf(cmd coord.Command) (*client, error) {
	c, ok := m.clients[cmd.Client]
	switch {
	case !ok:
		return nil, fault.Refused(fault.NotFound, "client", "is not known: it was idle for too long, or closed")
	case c.owner != cmd.Owner:
		return nil, fault.Refused(fault.Forbidden, "client", "belongs to another owner")
	case cmd.Sequence == 0:
		return nil, fault.Invalidf("sequence", 0, "must be above 0")
	case cmd.Sequence < c.sequence:
		return nil, fault.Refused(fault.Conflict, "sequence", "%d is done, the last is %d", cmd.Sequence, c.sequence)
	}
	return c, nil
}

// Clients gives the number of clients.
func (m *Machine) Clients() int { return len(m.clients) }

func (*clientOpenOp) run(m *Machine, c *call) error {
	if len(m.clients) >= int(m.limits.Clients) {
		return limitReached("clients", "too many clients", uint64(m.limits.Clients))
	}
	if m.lastClient == math.MaxUint64 {
		return fault.Refused(fault.LimitReached, "clients", "no id is left")
	}
	if most := m.limits.PerOwner.Clients; m.Usage(c.owner).Clients >= int(most) {
		return limitReached("per_owner.clients", "too many clients of one owner", uint64(most))
	}
	m.lastClient++
	m.clients[m.lastClient] = &client{owner: c.owner, seen: c.index}
	m.owner(c.owner).Clients++
	c.result.Client = m.lastClient
	return nil
}

func (*clientCloseOp) run(m *Machine, c *call) error {
	if c.client == 0 {
		return fault.Invalidf("client", nil, "is missing")
	}
	m.forget(c.client)
	return nil
}

func (m *Machine) forget(id coord.ClientID) {
	owner := m.clients[id].owner
	delete(m.clients, id)
	m.owner(owner).Clients--
	m.dropEmptyOwner(owner)
}

func (o *clientsExpireOp) run(m *Machine, c *call) error {
	if o.Term != c.term {
		return fault.Refused(fault.Conflict, "term", "measured in term %d, this is %d", o.Term, c.term)
	}
	before := len(m.clients)
	for id, c := range m.clients { // in any order: what is left is the same
		if c.seen < o.IdleSince {
			m.forget(id)
		}
	}
	c.result.Changed = before - len(m.clients)
	return nil
}
