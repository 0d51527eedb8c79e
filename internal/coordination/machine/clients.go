package machine

import (
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// client is the state of one client with exactly-once commands.
type client struct {
	owner    string // for its quota; whoever knows the random id uses the client, through any peer
	seen     uint64 // log index of its last command or its opening
	sequence uint64 // sequence of its last command; 0 before the first

	// The result of that command.
	revision coord.Revision
	err      error
	answer   []byte // encoded: a repetition gets an answer of its own
}

// keep keeps the result of a command for its repetition.
func (c *client) keep(sequence uint64, r Result) {
	c.sequence, c.revision, c.err, c.answer = sequence, r.Revision, r.Err, nil
	if r.Err == nil {
		c.answer = encodeAnswer(kept(r.Answer))
	}
}

// repeat returns the result of the last command.
func (c *client) repeat() Result {
	r := Result{Revision: c.revision, Err: c.err}
	if r.Err == nil {
		r.Answer, r.header, r.Err = decodeAnswer(c.answer)
	}
	return r
}

// clients are the clients by id. Sort before ranging over them if the order matters.
type clients struct {
	byID map[coord.ClientID]*client
}

// of returns the client of a command, to apply the command or to repeat its last result.
func (t *clients) of(a *apiv1.Attempt) (*client, error) {
	c, ok := t.byID[coord.ClientID(a.GetClient())]
	switch {
	case !ok:
		return nil, fault.Refused(fault.NotFound, "client", "unknown client: idle for too long, or closed")
	case a.GetSequence() == 0:
		return nil, fault.Invalidf("sequence", 0, "must be above 0")
	case a.GetSequence() < c.sequence:
		return nil, fault.Refused(fault.Conflict, "sequence", "%d is done, the last is %d", a.GetSequence(), c.sequence)
	}
	return c, nil
}

// choose returns the leader's random choice of an id, or after a collision the next free one.
func (t *clients) choose(random uint64) coord.ClientID {
	for id := coord.ClientID(random); ; id++ {
		if _, taken := t.byID[id]; !taken && id != 0 {
			return id
		}
	}
}

// forget removes a client.
func (t *clients) forget(id coord.ClientID, o owners) {
	owner := t.byID[id].owner
	delete(t.byID, id)
	o.of(owner).Clients--
	o.dropEmpty(owner)
}

// Clients gives the number of clients.
func (m *Machine) Clients() int { return len(m.clients.byID) }

func (c *call) openClient(m *Machine) error {
	if len(m.clients.byID) >= int(m.limits.Clients) {
		return limitReached("clients", "too many clients", uint64(m.limits.Clients))
	}
	if most := m.limits.PerOwner.Clients; m.Usage(c.owner).Clients >= int(most) {
		return limitReached("per_owner.clients", "too many clients of one owner", uint64(most))
	}
	id := m.clients.choose(c.random)
	m.clients.byID[id] = &client{owner: c.owner, seen: c.index}
	m.owners.of(c.owner).Clients++
	c.answer.Response = &coordv1.Result_OpenClient{OpenClient: &apiv1.OpenClientResponse{Header: c.header, Client: uint64(id)}}
	return nil
}

// closeClient removes the client of the command.
func (c *call) closeClient(m *Machine) error {
	if c.client == 0 {
		return fault.Invalidf("client", nil, "is missing")
	}
	m.clients.forget(c.client, m.owners)
	c.answer.Response = &coordv1.Result_CloseClient{CloseClient: &apiv1.CloseClientResponse{}}
	return nil
}

// expireClients removes clients whose last command or opening is before an index.
func (c *call) expireClients(m *Machine, r *coordv1.ClientsExpire, done *coordv1.Done) error {
	if r.GetTerm() != c.term {
		return fault.Refused(fault.Conflict, "term", "measured in term %d, this is %d", r.GetTerm(), c.term)
	}
	before := len(m.clients.byID)
	for id, c := range m.clients.byID { // the order does not matter: the remaining clients are the same
		if c.seen < r.GetIdleSince() {
			m.clients.forget(id, m.owners)
		}
	}
	done.Changed = uint32(before - len(m.clients.byID))
	return nil
}
