package lab

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const usableLimit = 30 * time.Second // from the start of two homes to a direct connection

// exchange lets two peers, one after the other, offer a service and withdraw it. The other peer must
// use it in time. Peers that dial each other at the same time would need no relay.
func exchange(ctx context.Context, w *world, pair [2]*peer, limit time.Duration) error {
	for i, p := range pair {
		id, began := "offer-of-"+p.name, time.Now()
		key, err := w.register(ctx, p, id)
		if err != nil {
			return err
		}
		other := pair[1-i]
		if err := w.awaitUsable(ctx, other, key, limit); err != nil {
			w.violated("%s does not use the service of %s: %v", other.name, p.name, err)
		} else {
			w.say("%s finds the service of %s usable after %.1f s", other.name, p.name, time.Since(began).Seconds())
		}
		if err := w.withdraw(ctx, p, id); err != nil {
			return err
		}
		if err := w.observe(ctx); err != nil {
			return err
		}
	}
	return nil
}

// observe leaves time in which the watched peers are asked.
func (w *world) observe(ctx context.Context) error {
	if w.Short {
		return await.Pause(ctx, time.Second)
	}
	return await.Pause(ctx, 5*time.Second)
}

// share hands a lock from one peer to another.
func share(ctx context.Context, w *world, peers ...*peer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last fence.Token
	for _, p := range slices.Concat(peers, peers[:1]) {
		token, err := lockOnce(ctx, p)
		if err != nil {
			w.violated("%s gets no lock: %v", p.name, err)
			return nil
		}
		if token <= last {
			w.violated("%s has token %d after %d", p.name, token, last)
		}
		last = token
	}
	w.say("one lock was held by %d peers in turn, last token %d", len(peers), last)
	return nil
}

func lockOnce(ctx context.Context, p *peer) (token fence.Token, err error) {
	s, err := p.Locks().Session(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	held, err := s.Lock(ctx, "lab/shared")
	if err != nil {
		return 0, err
	}
	return held.Token(), held.Unlock(ctx)
}

// connected reports the connection of two peers. Between NATs that preserve ports it must become direct by a time: a
// first hole punch may come too early, and is repeated.
func connected(ctx context.Context, w *world, pair [2]*peer, kind nat, by time.Time) error {
	var addrs []string
	a, b := pair[0], pair[1]
	err := await.Until(ctx, max(time.Until(by), time.Second), "a direct connection of "+a.name+" with "+b.name, func(ctx context.Context) (err error) {
		if addrs, err = addrsOf(ctx, a, b.id); err != nil || kind != preserving {
			return err
		}
		if !slices.ContainsFunc(addrs, func(addr string) bool { return !strings.Contains(addr, "/p2p-circuit") }) {
			return fault.New("lab.path", fault.NotFound, "only %v", addrs)
		}
		return nil
	})
	if err != nil {
		w.violated("%v", err)
		return nil
	}
	w.say("%s is connected with %s by %v", a.name, b.name, addrs)
	return nil
}

// addrsOf returns the addresses by which a peer is connected with another.
func addrsOf(ctx context.Context, p *peer, id string) ([]string, error) {
	peers, err := p.Peers(ctx)
	if err != nil {
		return nil, fault.Wrap(p.name, err)
	}
	for _, other := range peers {
		if other.ID == id {
			return other.Addrs, nil
		}
	}
	return nil, fault.New("lab.path", fault.NotFound, "no connection")
}
