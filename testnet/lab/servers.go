package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

// startLimit is the longest time from the start of a peer until it is ready, on a busy machine.
const startLimit = 2 * time.Minute

// raise starts n peers on a network, NAME-1 and so on. prepare changes one before its start; others have started before it.
func (w *world) raise(ctx context.Context, n int, on *netns.Network, name string, addresses func(i int) []string, prepare func(p *peer, others []*peer) error) ([]*peer, error) {
	var all []*peer
	for i := range n {
		h, err := w.host(on, fmt.Sprintf("%s-%d", name, i+1), addresses(i)...)
		if err != nil {
			return nil, err
		}
		p, err := w.peer(ctx, h, nil)
		if err == nil {
			err = prepare(p, all)
		}
		if err == nil {
			err = p.start()
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// acquainted waits until all peers know each other.
func acquainted(ctx context.Context, all []*peer) error {
	for _, p := range all {
		if err := p.awaitReady(ctx, startLimit, len(all)-1); err != nil {
			return err
		}
	}
	return nil
}

// single are the addresses of hosts that have one each.
func single(address func(int) string) func(int) []string {
	return func(i int) []string { return []string{address(i)} }
}

// servers starts public peers with settings as NAME=value, which bootstrap from the first, and waits until they know each other.
// address returns the address of the i-th.
func (w *world) servers(ctx context.Context, n int, address func(int) string, settings ...string) ([]*peer, error) {
	all, err := w.raise(ctx, n, w.internet, "server", single(address), func(p *peer, others []*peer) error {
		p.spec.Bootstrap, p.spec.Settings = addressesOf(others[:min(len(others), 1)]), settings
		if slices.Contains(settings, "COORDINATION_ENABLED=true") { // its group is that of the network's key
			return shareKey(ctx, others, p)
		}
		return nil
	})
	if err == nil {
		err = acquainted(ctx, all)
	}
	if err == nil {
		w.say("%d servers know each other", n)
	}
	return all, err
}

// server starts the i-th public peer, with settings as NAME=value, beside others.
func (w *world) server(ctx context.Context, name string, i int, bootstrap []*peer, settings ...string) (*peer, error) {
	h, err := w.host(w.internet, name, publicAddress(i))
	if err != nil {
		return nil, err
	}
	p, err := w.peer(ctx, h, func(s *process.Spec) { s.Bootstrap, s.Settings = addressesOf(bootstrap), settings })
	if err != nil {
		return nil, err
	}
	return p, p.start()
}

func addressesOf(peers []*peer) []string {
	var all []string
	for _, p := range peers {
		all = append(all, p.addresses()...)
	}
	return all
}

// home adds a router and a host behind it, with a peer that bootstraps from all servers.
func (w *world) home(ctx context.Context, name, wan string, kind nat, servers []*peer) (*peer, *router, error) {
	r, err := w.router("router-"+name, wan, kind)
	if err != nil {
		return nil, nil, err
	}
	h, err := w.host(r.inside, name, "192.168.1.10/24")
	if err != nil {
		return nil, nil, err
	}
	p, err := w.peer(ctx, h, func(s *process.Spec) { s.Bootstrap = addressesOf(servers) })
	return p, r, err
}

// publicAddress returns the i-th public address of servers, each of its own /16.
func publicAddress(i int) string {
	first := []string{"51.15", "45.33", "95.217", "142.250", "13.107", "185.60", "104.16", "5.9", "91.121", "163.172"}
	return fmt.Sprintf("%s.%d.1/32", first[i%len(first)], 1+i/len(first))
}

// publicAddress6 returns the i-th public IPv6 address of servers, each of its own /32.
func publicAddress6(i int) string {
	first := []string{"2a01:4f8", "2600:1f18", "2001:41d0", "2a00:1450", "2606:4700", "2a03:2880", "2a02:6b8", "2400:cb00"}
	return fmt.Sprintf("%s:%x::1/128", first[i%len(first)], 1+i/len(first))
}

// allFind requires that every peer finds services usable within a limit.
func (w *world) allFind(ctx context.Context, peers []*peer, limit time.Duration, keys ...string) error {
	began, missing := time.Now(), 0
	for _, p := range peers {
		for _, key := range keys {
			if err := w.awaitUsable(ctx, p, key, max(limit-time.Since(began), time.Second)); err != nil {
				w.violated("%v", err)
				missing++
			}
		}
	}
	w.say("%d peers looked for %d services; %d not found, %.1f s", len(peers), len(keys), missing, time.Since(began).Seconds())
	return ctx.Err()
}

// sayReach prints how strangers reach some peers.
func (w *world) sayReach(ctx context.Context, peers ...*peer) error {
	for _, p := range peers {
		s, err := p.look(ctx)
		if err != nil {
			return err
		}
		w.say("%s is %s: %s; mode %s", p.name, s.Reach.State, s.Reach.Text, s.Mode)
	}
	return nil
}
