package bootstrap

import (
	"bytes"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// State is the durable state of a Paxos acceptor. Zero means no promise yet. States are replaced, never
// changed through their pointers.
type State struct {
	Promised    Ballot       // lower ballots get no answer; at least Accepted
	Accepted    Ballot       // ballot of Membership
	Membership  *Membership  // nil: none accepted
	Certificate *Certificate // first valid one; with it the peer neither votes nor proposes
	Conflicting *Certificate // a valid certificate of another group, if any was met
}

// owner identifies the owner of a stored state.
type owner struct {
	peer    peer.ID
	network NetworkID
}

// encodeState encodes the state of o for its disk.
func encodeState(o owner, s State) ([]byte, error) {
	w := &groupv1.AcceptorState{
		Peer:     []byte(o.peer),
		Network:  o.network[:],
		Promised: wireBallot(s.Promised),
		Accepted: wireBallot(s.Accepted),
	}
	if s.Membership != nil {
		w.Membership = s.Membership.Encode()
	}
	if s.Certificate != nil {
		w.Certificate = s.Certificate.Encode()
	}
	if s.Conflicting != nil {
		w.Conflicting = s.Conflicting.Encode()
	}
	return proto.Marshal(w)
}

// decodeState decodes encodeState. It does not verify the certificates.
func decodeState(b []byte) (owner, State, error) {
	var o owner
	var s State
	w := new(groupv1.AcceptorState)
	if err := proto.Unmarshal(b, w); err != nil {
		return o, s, fault.New("", fault.Invalid, "%v", err)
	}
	o.peer = peer.ID(w.GetPeer())
	if copy(o.network[:], w.GetNetwork()); !bytes.Equal(o.network[:], w.GetNetwork()) {
		return o, s, fault.New("", fault.Invalid, "no network id")
	}
	var d decoder
	if w.GetPromised() != nil {
		s.Promised = d.ballot(w.GetPromised())
	}
	if w.GetAccepted() != nil {
		s.Accepted = d.ballot(w.GetAccepted())
		c := d.membership(w.GetMembership())
		s.Membership = &c
	}
	s.Certificate = d.optionalCertificate(w.GetCertificate())
	s.Conflicting = d.optionalCertificate(w.GetConflicting())
	if s.Promised.Compare(s.Accepted) < 0 {
		d.fail("accepted a ballot above the one promised")
	}
	return o, s, d.err
}

func (d *decoder) optionalCertificate(b []byte) *Certificate {
	if len(b) == 0 {
		return nil
	}
	c := d.certificate(b)
	return &c
}
