package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const findLimit = 30 * time.Second // until all instances are found

// segment starts peers on a new local network with one key and without configured addresses. Multicast leads
// them to each other, and they found one group. The first generates the key; the others start as soon as it is there.
func segment(ctx context.Context, w *world, n int, address func(int) string) error {
	all, err := w.raise(ctx, n, w.network(netns.Quality{}), "host", single(address), func(p *peer, others []*peer) error {
		p.spec.Profile = "lan"
		return shareKey(ctx, others, p)
	})
	began := time.Now()
	if err == nil {
		err = acquainted(ctx, all)
	}
	if err == nil {
		w.say("%d hosts found each other by multicast, %.1f s after the last start", n, time.Since(began).Seconds())
	}
	return err
}

// shareKey gives a peer that has not started the key of the network of the first of others; without others it makes one.
func shareKey(ctx context.Context, others []*peer, to *peer) error {
	const file = "network.key"
	if len(others) == 0 {
		return nil
	}
	from := others[0]
	var key []byte
	if err := await.Until(ctx, startLimit, from.name+" has the key of the network", func(context.Context) (err error) {
		key, err = os.ReadFile(filepath.Join(from.spec.Data, file))
		return err
	}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to.spec.Data, file), key, 0o600)
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

func lan4(i int) string { return fmt.Sprintf("192.168.7.%d/24", 11+i) }
func lan6(i int) string { return fmt.Sprintf("fd00:7::%x/64", 11+i) }

// home6 adds a router that filters and does not translate, and starts a peer behind it.
func (w *world) home6(ctx context.Context, name, address string, servers []*peer) error {
	r, err := w.router("router-"+name, "62.10.1.1/32", preserving)
	if err != nil {
		return err
	}
	if err := r.delegate(netip.MustParseAddr(address)); err != nil {
		return err
	}
	h, err := w.host(r.inside, name, address+"/128")
	if err != nil {
		return err
	}
	p, err := w.peer(ctx, h, func(s *process.Spec) { s.Bootstrap = addressesOf(servers) })
	if err != nil {
		return err
	}
	return p.start()
}
