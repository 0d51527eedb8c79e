package bootstrap

import (
	"bytes"
	"crypto/ed25519"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// MaxMessageBytes bounds an encoded groupv1.BootstrapMessage.
const MaxMessageBytes = MaxCertificateBytes + 1<<10

// A message is one of the types below: a groupv1.BootstrapMessage, decoded but not verified.
type message interface {
	fill(*groupv1.BootstrapMessage)
}

type (
	hello struct {
		raftID uint64  // 0: only looks for a certificate
		group  GroupID // known to the sender; zero without one
	}
	prepare struct{ ballot Ballot }
	promise struct {
		ballot     Ballot
		accepted   Ballot      // zero: nothing accepted
		membership *Membership // nil exactly if accepted is zero
	}
	refuse struct{ ballot, promised Ballot }
	accept struct {
		ballot     Ballot
		membership Membership
	}
	accepted struct {
		ballot    Ballot
		group     GroupID
		signature []byte
	}
	announce struct{ certificate Certificate }
)

// encode encodes a message of the network.
func encode(network NetworkID, m message) *groupv1.BootstrapMessage {
	w := &groupv1.BootstrapMessage{Network: network[:]}
	m.fill(w)
	return w
}

// decode decodes a message of the network.
//
// Errors: Conflict for another network's message, Invalid and TooLarge for malformed ones.
func decode(network NetworkID, w *groupv1.BootstrapMessage) (message, error) {
	if !bytes.Equal(w.GetNetwork(), network[:]) {
		return nil, fault.New("", fault.Conflict, "message of network %x; ours is %s", clip(w.GetNetwork()), network)
	}
	var d decoder
	var m message
	switch op := w.GetOp().(type) {
	case *groupv1.BootstrapMessage_Hello:
		m = hello{raftID: op.Hello.GetRaftId(), group: d.optionalGroup(op.Hello.GetGroupId())}
	case *groupv1.BootstrapMessage_Prepare:
		m = prepare{ballot: d.ballot(op.Prepare.GetBallot())}
	case *groupv1.BootstrapMessage_Promise:
		m = d.promise(op.Promise)
	case *groupv1.BootstrapMessage_Refuse:
		m = refuse{ballot: d.ballot(op.Refuse.GetBallot()), promised: d.ballot(op.Refuse.GetPromised())}
	case *groupv1.BootstrapMessage_Accept:
		m = accept{ballot: d.ballot(op.Accept.GetBallot()), membership: d.membership(op.Accept.GetMembership())}
	case *groupv1.BootstrapMessage_Accepted:
		m = d.accepted(op.Accepted)
	case *groupv1.BootstrapMessage_Announce:
		m = announce{certificate: d.certificate(op.Announce.GetCertificate())}
	default:
		d.fail("empty message")
	}
	if d.err != nil {
		return nil, d.err
	}
	return m, nil
}

func clip(b []byte) []byte { return b[:min(len(b), len(NetworkID{}))] }

// decoder keeps the first error, so that decoding a message is one expression.
type decoder struct{ err error }

func (d *decoder) keep(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) fail(format string, args ...any) {
	d.keep(fault.New("", fault.Invalid, format, args...))
}

func (d *decoder) ballot(w *groupv1.Ballot) Ballot {
	b := Ballot{Round: w.GetRound(), Peer: peer.ID(w.GetPeer())}
	if _, ok := publicKey(b.Peer); !ok || b.Round == 0 {
		d.fail("not a ballot")
	}
	return b
}

func (d *decoder) membership(b []byte) Membership {
	c, err := decodeMembership(b)
	if err != nil {
		d.keep(err)
	}
	return c
}

func (d *decoder) certificate(b []byte) Certificate {
	c, err := decodeCertificate(b)
	if err != nil {
		d.keep(err)
	}
	return c
}

func (d *decoder) optionalGroup(b []byte) (id GroupID) {
	if len(b) != 0 && len(b) != len(id) {
		d.fail("group id has %d bytes, not %d", len(b), len(id))
	}
	copy(id[:], b)
	return id
}

func (d *decoder) promise(w *groupv1.Promise) message {
	m := promise{ballot: d.ballot(w.GetBallot())}
	if w.GetAccepted() == nil {
		return m
	}
	m.accepted = d.ballot(w.GetAccepted())
	c := d.membership(w.GetMembership())
	m.membership = &c
	return m
}

func (d *decoder) accepted(w *groupv1.Accepted) message {
	m := accepted{ballot: d.ballot(w.GetBallot()), group: d.optionalGroup(w.GetGroupId()), signature: w.GetSignature()}
	if len(m.signature) != ed25519.SignatureSize {
		d.fail("signature has %d bytes, not %d", len(m.signature), ed25519.SignatureSize)
	}
	return m
}

func wireBallot(b Ballot) *groupv1.Ballot {
	if b.IsZero() {
		return nil
	}
	return &groupv1.Ballot{Round: b.Round, Peer: []byte(b.Peer)}
}

func (m hello) fill(w *groupv1.BootstrapMessage) {
	h := &groupv1.Hello{RaftId: m.raftID}
	if !m.group.IsZero() {
		h.GroupId = m.group[:]
	}
	w.Op = &groupv1.BootstrapMessage_Hello{Hello: h}
}

func (m prepare) fill(w *groupv1.BootstrapMessage) {
	w.Op = &groupv1.BootstrapMessage_Prepare{Prepare: &groupv1.Prepare{Ballot: wireBallot(m.ballot)}}
}

func (m promise) fill(w *groupv1.BootstrapMessage) {
	p := &groupv1.Promise{Ballot: wireBallot(m.ballot), Accepted: wireBallot(m.accepted)}
	if m.membership != nil {
		p.Membership = m.membership.Encode()
	}
	w.Op = &groupv1.BootstrapMessage_Promise{Promise: p}
}

func (m refuse) fill(w *groupv1.BootstrapMessage) {
	w.Op = &groupv1.BootstrapMessage_Refuse{Refuse: &groupv1.Refuse{Ballot: wireBallot(m.ballot), Promised: wireBallot(m.promised)}}
}

func (m accept) fill(w *groupv1.BootstrapMessage) {
	w.Op = &groupv1.BootstrapMessage_Accept{Accept: &groupv1.Accept{Ballot: wireBallot(m.ballot), Membership: m.membership.Encode()}}
}

func (m accepted) fill(w *groupv1.BootstrapMessage) {
	w.Op = &groupv1.BootstrapMessage_Accepted{Accepted: &groupv1.Accepted{
		Ballot: wireBallot(m.ballot), GroupId: m.group[:], Signature: m.signature,
	}}
}

func (m announce) fill(w *groupv1.BootstrapMessage) {
	w.Op = &groupv1.BootstrapMessage_Announce{Announce: &groupv1.Announce{Certificate: m.certificate.Encode()}}
}
