package daemon

import (
	"context"

	"github.com/blackhole/blackhole/internal/agent/requirement"
)

// startDirector has this peer direct the requirements whenever it leads the group. What it reads and writes it does at
// its own member.
func (p *parts) startDirector(context.Context) error {
	if p.coordination == nil {
		return nil
	}
	member := p.coordination.plane.Member()
	d := requirement.New(requirement.Config{
		Self: p.node.Host().ID().String(), Leader: p.coordination.plane, Member: member,
		Logger: p.log.With("part", "director"),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	p.onClose(func() error {
		stop()
		<-done
		return nil
	})
	return nil
}
