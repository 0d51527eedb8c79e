package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	lanHosts  = 5
	findLimit = 30 * time.Second // until a service is usable, without obstacles
)

// segment starts peers on a new local network with one key and without configured addresses. Multicast leads
// them to each other, and they found one group. The first generates the key; the others start as soon as it is there.
func segment(ctx context.Context, w *world, n int, address func(int) string) ([]*peer, error) {
	segment := w.network(netns.Quality{})
	var all []*peer
	for i := range n {
		h, err := w.host(segment, fmt.Sprintf("host-%d", i+1), address(i))
		if err != nil {
			return nil, err
		}
		p, err := w.peer(ctx, h, func(s *process.Spec) {
			s.Profile = "lan"
		})
		if err != nil {
			return nil, err
		}
		if i > 0 {
			if err := shareKey(ctx, all[0], p); err != nil {
				return nil, err
			}
		}
		if err := p.start(); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	began := time.Now()
	for _, p := range all {
		if err := p.awaitReady(ctx, startLimit, n-1); err != nil {
			return nil, err
		}
	}
	w.say("%d hosts found each other by multicast, %.1f s after the last start", n, time.Since(began).Seconds())
	return all, nil
}

// shareKey gives a peer that has not started the key of the network of another one.
func shareKey(ctx context.Context, from, to *peer) error {
	const file = "network.key"
	var key []byte
	if err := await.Until(ctx, startLimit, from.name+" has the key of the network", func(context.Context) (err error) {
		key, err = os.ReadFile(filepath.Join(from.spec.Data, file))
		return err
	}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to.spec.Data, file), key, 0o600)
}

// local plays a home or office network without a configuration.
func local(address func(int) string) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		all, err := segment(ctx, w, lanHosts, address)
		if err != nil {
			return err
		}
		first, last := all[0], all[len(all)-1]
		w.watch(ctx, last)
		key, err := w.register(ctx, first, "of-the-first")
		if err != nil {
			return err
		}
		if err := w.allFind(ctx, all[1:], findLimit, key); err != nil {
			return err
		}
		if err := errors.Join(share(ctx, w, all...), directory(ctx, w, all)); err != nil {
			return err
		}
		if err := errors.Join(w.sound(ctx, first, last), w.withdraw(ctx, first, "of-the-first")); err != nil {
			return err
		}
		return w.awaitGone(ctx, last, key, findLimit)
	}
}

// directory registers an instance at every peer, and expects every peer to find all of them.
func directory(ctx context.Context, w *world, all []*peer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, p := range all {
		_, err := p.Agent().Register(ctx, instance.Registration{
			Key: instance.Key{Service: "printer", ID: p.name}, Spec: instance.Spec{Host: p.name, Port: 631}, RequireCommit: true,
		})
		if err != nil {
			w.violated("%s registers no instance: %v", p.name, err)
		}
	}
	began := time.Now()
	for _, p := range all {
		err := await.Until(ctx, findLimit, p.name+" finds the instances of all", func(ctx context.Context) error {
			q := instance.Query{Name: instance.Name{Service: "printer"}, Selector: instance.Selector{AnyStatus: true}}
			found, err := p.Agent().Discover(ctx, q)
			if err == nil && (found.Stale || len(found.Instances) != len(all)) {
				err = fault.New("lab.directory", fault.NotFound, "%d of %d, stale: %v", len(found.Instances), len(all), found.Stale)
			}
			return err
		})
		if err != nil {
			w.violated("%v", err)
		}
	}
	w.say("each of %d peers found the instances of all, %.1f s", len(all), time.Since(began).Seconds())
	return nil
}

// vpn plays hosts of a VPN whose owner took the profile of the Internet. Each peer says so.
func vpn(ctx context.Context, w *world) error {
	segment := w.network(netns.Quality{})
	var all []*peer
	for i := range 2 {
		h, err := w.host(segment, fmt.Sprintf("host-%d", i+1), fmt.Sprintf("100.64.0.%d/10", 11+i))
		if err != nil {
			return err
		}
		p, err := w.peer(ctx, h, func(s *process.Spec) { s.Bootstrap = addressesOf(all) })
		if err == nil {
			err = p.start()
		}
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	for _, p := range all {
		err := await.Until(ctx, 2*time.Minute, p.name+" reports private_addresses", func(ctx context.Context) error {
			s, err := p.Status(ctx)
			if err == nil && !slices.ContainsFunc(s.Conditions, func(c discovery.Condition) bool { return c.Name == "private_addresses" }) {
				err = fault.New("lab.vpn", fault.NotFound, "conditions: %v", s.Conditions)
			}
			return err
		})
		if err != nil {
			w.violated("%v", err)
		}
		if err := w.diagnosed(ctx, p, "network", "PROBLEM", "profile", "private"); err != nil {
			return err
		}
	}
	w.say("both hosts said that profile public ignores their addresses")
	return nil
}

func lan4(i int) string { return fmt.Sprintf("192.168.7.%d/24", 11+i) }
func lan6(i int) string { return fmt.Sprintf("fd00:7::%x/64", 11+i) }

// public6 plays servers with IPv6 addresses only, and two homes with public IPv6 addresses behind
// routers that let nobody in.
func public6(ctx context.Context, w *world) error {
	const n = 4
	public, err := w.servers(ctx, n, publicAddress6, nil)
	if err != nil {
		return err
	}
	var homes [2]*peer
	for i, address := range []string{"2a02:8100:1::10", "2a01:cb00:1::10"} {
		if homes[i], err = home6(ctx, w, fmt.Sprintf("home-%c", 'a'+i), address, public); err != nil {
			return err
		}
	}
	for _, p := range homes {
		if err := p.awaitReady(ctx, startLimit, n); err != nil {
			return err
		}
	}
	w.say("both homes are ready")
	for _, p := range []*peer{homes[0], homes[1], public[n-1]} {
		w.watch(ctx, p)
	}
	key, err := w.register(ctx, public[0], "of-a-server")
	if err != nil {
		return err
	}
	if err := w.allFind(ctx, append(public[1:], homes[:]...), findLimit, key); err != nil {
		return err
	}
	err = exchange(ctx, w, homes, usableLimit)
	return errors.Join(err, w.sayReach(ctx, public[0], homes[0], homes[1]), w.sound(ctx, public[0], homes[0], homes[1]))
}

// home6 adds a router that filters and does not translate, and starts a peer behind it.
func home6(ctx context.Context, w *world, name, address string, servers []*peer) (*peer, error) {
	r, err := w.router("router-"+name, "62.10.1.1/32", preserving)
	if err != nil {
		return nil, err
	}
	if err := r.delegate(netip.MustParseAddr(address)); err != nil {
		return nil, err
	}
	h, err := w.host(r.inside, name, address+"/128")
	if err != nil {
		return nil, err
	}
	p, err := w.peer(ctx, h, func(s *process.Spec) { s.Bootstrap = addressesOf(servers) })
	if err != nil {
		return nil, err
	}
	return p, p.start()
}
