package machine

import (
	"container/list"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// client is the state of one client with exactly-once commands.
type client struct {
	id       coord.ClientID
	place    *list.Element // among those of its owner
	owner    string        // whoever knows the random id uses the client, through any peer
	seen     uint64        // log index of its last command or its opening
	sequence uint64        // sequence of its last command; 0 before the first

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
	byID         map[coord.ClientID]*client
	applications int // those of applications; the others belong to peers
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

// add adds a client with the latest command of its owner.
func (t *clients) add(c *client, o *owners) {
	t.byID[c.id] = c
	a := o.of(c.owner)
	a.count(func(u *Usage) { u.Clients++ })
	c.place = a.idle.PushBack(c)
	if principals.IsApplication(c.owner) {
		t.applications++
	}
}

// saw notes a command of a client.
func (t *clients) saw(c *client, index uint64, o *owners) {
	c.seen = index
	o.by[c.owner].idle.MoveToBack(c.place)
}

// forget removes a client.
func (t *clients) forget(id coord.ClientID, o *owners) {
	c := t.byID[id]
	delete(t.byID, id)
	a := o.of(c.owner)
	a.count(func(u *Usage) { u.Clients-- })
	a.idle.Remove(c.place)
	o.dropEmpty(c.owner)
	if principals.IsApplication(c.owner) {
		t.applications--
	}
}

// makeRoom forgets the idlest client of an owner at its bound, or of the owner with the most where no place is left. So an opening
// never fails, and who floods the clients loses its own. Applications never displace the clients of peers while these are within the reserve.
func (t *clients) makeRoom(owner string, l *limits, o *owners) {
	from := ""
	switch open := l.open(uint64(l.Clients), applications); {
	case o.find(owner).total().Clients >= int(l.PerOwner.Clients):
		from = o.greediest(func(other string) bool { return principals.Quota(other) == principals.Quota(owner) })
	case principals.IsApplication(owner) && uint64(t.applications) >= open:
		from = o.greediest(principals.IsApplication)
	case len(t.byID) >= int(l.Clients):
		from = o.greediest(func(string) bool { return true })
	default:
		return
	}
	t.forget(o.by[from].idle.Front().Value.(*client).id, o)
}

// greediest returns the owner with the most clients, of those that qualify. One of them must have a client.
func (o *owners) greediest(qualifies func(string) bool) (most string) {
	clients := 0
	for name, a := range o.by { // the order does not matter: of equal ones it is the first by name
		if qualifies(name) && (a.Clients > clients || a.Clients == clients && name < most) {
			most, clients = name, a.Clients
		}
	}
	return most
}

// Clients gives the number of clients.
func (m *Machine) Clients() int { return len(m.clients.byID) }

func (c *call) openClient(m *Machine) error {
	m.clients.makeRoom(c.owner, &m.limits, &m.owners)
	id := m.clients.choose(c.random)
	m.clients.add(&client{id: id, owner: c.owner, seen: c.index}, &m.owners)
	c.answer.Response = &coordv1.Result_OpenClient{OpenClient: &apiv1.OpenClientResponse{Header: c.header, Client: uint64(id)}}
	return nil
}

// closeClient removes the client of the command.
func (c *call) closeClient(m *Machine) error {
	if c.client == 0 {
		return fault.Invalidf("client", nil, "is missing")
	}
	m.clients.forget(c.client, &m.owners)
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
			m.clients.forget(id, &m.owners)
		}
	}
	done.Changed = uint32(before - len(m.clients.byID))
	return nil
}
