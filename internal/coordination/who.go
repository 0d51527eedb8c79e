package coordination

import (
	"context"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Acquaintances returns the peers that may know the leader, this one included.
//
// Deprecated: follow Leading.
func (p *Plane) Acquaintances() []string {
	all := []string{p.name}
	for _, id := range p.inquiry.peers() {
		all = append(all, id.String())
	}
	return all
}

// Who asks a peer for the leader, empty if it knows none.
//
// Deprecated: follow Leading.
func (p *Plane) Who(ctx context.Context, at string) (term uint64, name string, err error) {
	const op = "group.Who"
	if at == p.name {
		term, name, _ = p.Leading()
		return term, name, nil
	}
	id, err := peer.Decode(at)
	if err != nil {
		return 0, "", fault.Wrap(op, fault.Invalidf("peer", at, "is not a peer id: %w", err))
	}
	said, ok := p.inquiry.ask(ctx, id, 0)
	if !ok {
		return 0, "", fault.New(op, fault.Unavailable, "the peer describes no group")
	}
	if said.Peer != "" {
		name = said.Peer.String()
	}
	return said.Term, name, nil
}
