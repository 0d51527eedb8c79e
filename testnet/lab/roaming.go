package lab

import (
	"context"
	"errors"
	"fmt"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
	"time"
)

const (
	nap       = 40 * time.Second // of the processes: longer than the idle timeout of connections
	shortNap  = 12 * time.Second // longer than the pause that a peer takes for sleep; its connections look alive
	asleep    = time.Hour        // on the clock
	moveLimit = 2 * time.Minute  // from a change of address until others use the peer again
)

// roaming moves a server and a home to other addresses. Then a server and a home sleep for an hour.
func roaming(ctx context.Context, w *world) error {
	public, err := w.servers(ctx, officeServer, publicAddress, nil)
	if err != nil {
		return err
	}
	home, router, err := w.home(ctx, "home", "62.10.1.1/32", preserving, public)
	if err != nil {
		return err
	}
	if err := home.start(); err != nil {
		return err
	}
	if err := home.awaitReady(ctx, startLimit, officeServer); err != nil {
		return err
	}
	w.say("a home is ready")
	mover, observer := public[officeServer-1], public[1]
	for _, p := range []*peer{home, observer} {
		w.watch(ctx, p)
	}
	ofServer, err := w.register(ctx, mover, "of-the-moving-server")
	if err != nil {
		return err
	}
	ofHome, err := w.register(ctx, home, "of-the-moving-home")
	if err != nil {
		return err
	}
	if err := w.allFind(ctx, []*peer{observer, home}, moveLimit, ofServer, ofHome); err != nil {
		return err
	}
	moves := []struct {
		host *host
		to   string
	}{{mover.host, "104.16.9.1/32"}, {router.host, "80.20.9.1/32"}}
	for _, m := range moves {
		if err := m.host.move(m.to); err != nil {
			return err
		}
		w.say("%s moved to %s", m.host.name, m.to)
	}
	if err := afterMove(ctx, w, public, home, []string{ofServer, ofHome}); err != nil {
		return err
	}
	return sleep(ctx, w, public, home)
}

// afterMove requires that an old peer and a newcomer use the moved peers. The last server has moved;
// the newcomer knows only the first one.
func afterMove(ctx context.Context, w *world, public []*peer, home *peer, keys []string) error {
	fresh, err := w.server(ctx, "newcomer", officeServer, public[:1])
	if err != nil {
		return err
	}
	if err := fresh.awaitReady(ctx, startLimit, 1); err != nil {
		return err
	}
	w.watch(ctx, fresh)
	if err := w.allFind(ctx, []*peer{fresh, public[1]}, moveLimit, keys...); err != nil {
		return err
	}
	key, err := w.register(ctx, public[2], "after-the-move")
	if err != nil {
		return err
	}
	return w.allFind(ctx, []*peer{public[officeServer-1], home}, moveLimit, key)
}

// sleep stops a server and a home. Services change meanwhile, and all clocks move by an hour. Awake
// again, the sleepers must give no wrong complete answer.
func sleep(ctx context.Context, w *world, public []*peer, home *peer) error {
	sleepers := []*peer{public[3], home}
	w.watch(ctx, sleepers[0])
	gone, err := w.register(ctx, public[0], "withdrawn-meanwhile")
	if err != nil {
		return err
	}
	for _, p := range sleepers {
		if err := p.now.Pause(); err != nil {
			return err
		}
	}
	w.say("%s and %s sleep", sleepers[0].name, sleepers[1].name)
	slept := time.Now()
	if err := w.diagnosed(ctx, sleepers[0], "peer", "PROBLEM", "listens", "does not answer"); err != nil {
		return err
	}
	added, err := changeMeanwhile(ctx, w, public)
	if err != nil {
		return err
	}
	long := nap
	if w.Short {
		long = shortNap
	}
	if err := await.Pause(ctx, long-time.Since(slept)); err != nil {
		return err
	}
	for _, p := range w.peers {
		if err := process.SetClock(p.spec.Data, asleep); err != nil {
			return err
		}
	}
	for _, p := range sleepers {
		if err := p.now.Resume(); err != nil {
			return err
		}
	}
	w.say("they woke, %v later on every clock", asleep)
	for _, p := range sleepers {
		if err := w.awaitKnown(ctx, p, added, moveLimit); err != nil {
			w.violated("%v", err)
		}
		if err := w.awaitGone(ctx, p, gone, moveLimit); err != nil {
			return err
		}
		key, err := w.register(ctx, p, fmt.Sprintf("after-the-sleep-of-%s", p.name))
		if err != nil {
			return err
		}
		if err := w.allFind(ctx, public[1:2], moveLimit, key); err != nil {
			return err
		}
	}
	return nil
}

// changeMeanwhile withdraws a service and registers another one, at the same time: each waits for the keeper that sleeps.
func changeMeanwhile(ctx context.Context, w *world, public []*peer) (added string, err error) {
	withdrawn := make(chan error)
	go func() { withdrawn <- w.withdraw(ctx, public[0], "withdrawn-meanwhile") }()
	added, err = w.register(ctx, public[2], "registered-meanwhile")
	return added, errors.Join(err, <-withdrawn)
}
