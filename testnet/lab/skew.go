package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	correctServers = 6
	noticeable     = 30 * time.Second // smallest offset with a report
	harmful        = 2 * time.Minute  // smallest offset with records invalid elsewhere
	noticeLimit    = 90 * time.Second // until a report of a wrong clock, or its end
	clockOffset    = "clock_offset"   // the condition
)

// offsets are the wrong clocks; a short run plays the first ones.
func offsets() []time.Duration {
	const day = 25 * time.Hour // more than the lifetime of a record
	return []time.Duration{-10 * time.Minute, day, time.Minute, -time.Minute, 10 * time.Minute, -day}
}

// skew plays peers with wrong clocks, one after the other, in a network with correct clocks. The
// peer reports its wrong clock, gives no wrong complete answer, and distrusts no other peer. A
// corrected clock ends all consequences.
func skew(ctx context.Context, w *world) error {
	public, err := w.servers(ctx, correctServers, publicAddress, nil)
	if err != nil {
		return err
	}
	key, err := w.register(ctx, public[0], "of-a-correct-clock")
	if err != nil {
		return err
	}
	c := clocks{w, public, key}
	w.watch(ctx, public[1])
	all := offsets()
	if w.Short {
		all = all[:2]
	}
	for i, offset := range all {
		if err := c.play(ctx, i, offset); err != nil {
			return err
		}
	}
	for _, p := range public {
		if _, err := p.awaitCondition(ctx, clockOffset, false, time.Second); err != nil {
			w.violated("a correct clock is blamed: %v", err)
		}
	}
	return nil
}

// clocks are the correct peers, with one of their services.
type clocks struct {
	*world
	public []*peer
	key    string
}

// play plays the i-th peer, with an offset.
func (c clocks) play(ctx context.Context, i int, offset time.Duration) error {
	direction := "ahead"
	if offset < 0 {
		direction = "behind"
	}
	name := fmt.Sprintf("clock-%dm-%s", int(offset.Abs().Minutes()), direction)
	p, err := c.server(ctx, name, correctServers+i, c.public[:2])
	if err != nil {
		return err
	}
	if err := process.SetClock(p.spec.Data, offset); err != nil {
		return err
	}
	if err := p.awaitReady(ctx, startLimit, correctServers-1); err != nil {
		c.violated("%v", err)
		return ctx.Err()
	}
	c.watch(ctx, p)
	if err := c.noticed(ctx, p, offset); err != nil {
		return err
	}
	if err := c.offer(ctx, p, "of-"+name, offset); err != nil {
		return err
	}
	if err := await.Pause(ctx, 5*time.Second); err != nil { // it is asked meanwhile
		return err
	}
	return c.correct(ctx, p)
}

// correct corrects the clock of a peer, which must end all consequences.
func (c clocks) correct(ctx context.Context, p *peer) error {
	if err := process.SetClock(p.spec.Data, 0); err != nil {
		return err
	}
	if _, err := p.awaitCondition(ctx, clockOffset, false, noticeLimit); err != nil {
		c.violated("its clock is right again: %v", err)
	}
	if err := c.awaitUsable(ctx, p, c.key, findLimit); err != nil {
		c.violated("its clock is right again: %v", err)
	}
	c.say("%s has a right clock and finds the service of a correct peer", p.name)
	c.truth.leave(p)
	p.stop(ctx)
	return ctx.Err()
}

// noticed requires a report of the wrong clock, in status and health.
func (c clocks) noticed(ctx context.Context, p *peer, offset time.Duration) error {
	message, err := p.awaitCondition(ctx, clockOffset, offset.Abs() > noticeable, noticeLimit)
	if err != nil {
		c.violated("%v", err)
		return ctx.Err()
	}
	health, err := p.get(ctx, "/v1/health")
	if err != nil {
		return err
	}
	if !strings.Contains(health, "degraded") {
		c.violated("%s does not say degraded: %s", p.name, health)
	}
	c.say("%s: %s", p.name, message)
	return c.diagnosed(ctx, p, "clock", "PROBLEM", "clock")
}

// offer registers at a peer with a wrong clock. With a small offset, others use the service. With a
// large offset, the receipt must explain why others do not.
func (c clocks) offer(ctx context.Context, p *peer, id string, offset time.Duration) error {
	if offset.Abs() < harmful {
		key, err := c.register(ctx, p, id)
		if err != nil {
			return err
		}
		if err := c.allFind(ctx, c.public[2:4], findLimit, key); err != nil {
			return err
		}
		return c.withdraw(ctx, p, id)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := p.Register(ctx, market.Plain(id, 1)) // not known to the truth: correct peers need not find it
	if err != nil {
		return fault.Wrap(p.name, err)
	}
	c.say("%s registered %s: %+v", p.name, id, r)
	if !strings.Contains(fmt.Sprintf("%+v", r), "clock") {
		c.violated("%s registered with a clock that is off by %v, and the receipt does not say so", p.name, offset)
	}
	_, err = p.Withdraw(ctx, id)
	return err
}
