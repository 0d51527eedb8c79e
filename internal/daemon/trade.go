package daemon

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/trade"
	"github.com/blackhole/blackhole/pkg/fault"
)

// tradeDir is the folder of grants in a data directory.
const tradeDir = "trade"

// startTrade starts the desk at which this peer sells and buys.
func (p *parts) startTrade(context.Context) (err error) {
	p.trade, err = trade.Open(trade.Config{
		Network: p.network.name, Key: p.key, Host: p.node.QuickHost(), Dir: filepath.Join(p.config.Data, tradeDir),
		Own: p.discovery.Own, All: p.discovery.OwnAll, Group: p.ledgerGroup, Suspends: p.doubted,
		Shared: p.config.Profile != string(p2p.Public) || p.network.private != nil, Logger: p.log.With("part", "trade"),
	})
	if err != nil {
		return err
	}
	p.onClose(p.trade.Close)
	return nil
}

// ledgerGroup returns the group that keeps the ledger of this peer, and the name of its present life: nil for a peer that is a member of none.
func (p *parts) ledgerGroup() (coord.Service, string, error) {
	if p.coordination == nil {
		return nil, "", nil
	}
	plane := p.coordination.plane
	switch s := plane.Standing(); s.Phase {
	case "member":
		return plane, fmt.Sprintf("%s/%d", s.ID, s.Incarnation), nil
	case "founding", "joining", "stopped":
		return nil, "", fault.New("daemon.Group", fault.Unavailable, "this peer is %s: %s", s.Phase, s.Missing)
	}
	return nil, "", nil
}

// doubted says why this peer may grant nothing: a second machine with its identity could grant the same units.
func (p *parts) doubted() error {
	for _, c := range p.conditions.Active() {
		if c.Name == condition.IdentityInUse {
			return fault.New("daemon.Grant", fault.Unavailable, "%s", c.Message)
		}
	}
	return nil
}
