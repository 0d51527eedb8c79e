// Package dnssd tells the local network which instances this peer has, by DNS-SD over multicast DNS (RFC 6763, RFC 6762). It answers no
// question by itself: a library that speaks multicast DNS does, with a socket for each instance.
package dnssd

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/zeroconf/v2"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxLabel = 63   // bytes (RFC 1035)
	maxText  = 1024 // bytes of all texts of an instance: they fit into a packet (RFC 6763, section 6.2)
	// maxInstances bounds the instances announced by multicast: each has sockets of its own.
	maxInstances = 64
	// ttl is how long neighbours believe in an instance of a peer that went without goodbye (RFC 6762, section 10).
	ttl = 2 * time.Minute
	// joinAgain is how often the networks of this machine are compared: sockets listen on those of their time.
	joinAgain = 30 * time.Second
)

// Announcer announces the UP instances of this peer in the default namespace as ID._SERVICE._tcp.local. Neighbours can use an address alone,
// so instances at names and at loopback addresses are left out, as
// those without a port, which an SRV record needs.
type Announcer struct {
	catalog instances.Catalog
	self    string
	log     *slog.Logger

	// announce starts to announce; networks describes the networks on which.
	announce func(announcement) (interface{ Shutdown() }, error)
	networks func() string

	// Used by Run alone.
	up     map[instance.Key]announcement // what should be announced
	told   map[instance.Key]announced
	joined string // the networks of told
	warned string // the last warning, which is not repeated
}

// announcement is what neighbours are told of an instance. It is comparable.
type announcement struct {
	id, service string
	addr        netip.Addr
	port        int
	texts       string // separated by zero bytes
}

type announced struct {
	announcement
	server interface{ Shutdown() }
}

// New returns an announcer of the instances of a peer; Run starts it.
func New(catalog instances.Catalog, self string, log *slog.Logger) *Announcer {
	return &Announcer{
		catalog: catalog, self: self, log: log, announce: announceService, networks: localAddresses,
		up: map[instance.Key]announcement{}, told: map[instance.Key]announced{},
	}
}

// Run announces until ctx ends, and then says goodbye.
func (a *Announcer) Run(ctx context.Context) {
	defer a.leave()
	changes := make(chan instance.Batch)
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() {
		defer close(done)
		a.watch(watched, changes)
	}()
	again := time.NewTicker(joinAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-changes:
			a.read(b)
		case <-again.C:
		}
		a.tell()
	}
}

// watch sends what the catalog changes until ctx ends. A watch that the catalog ended begins anew.
func (a *Announcer) watch(ctx context.Context, changes chan<- instance.Batch) {
	q := instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace}}
	for ok := true; ok; ok = pause.For(ctx, joinAgain) {
		err := a.catalog.Watch(ctx, q, 0, func(b instance.Batch) error {
			select {
			case changes <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if ctx.Err() == nil {
			a.log.Warn("the watch of instances to announce by multicast DNS ended; it begins again in 30 s", "error", err)
		}
	}
}

func (a *Announcer) read(b instance.Batch) {
	if b.Reset {
		clear(a.up)
	}
	for _, e := range b.Events {
		delete(a.up, e.Instance.Key)
		if x, ok := a.of(e.Instance); ok && e.Type != instance.Removed {
			a.up[e.Instance.Key] = x
		}
	}
}

// of returns what is announced of an instance.
func (a *Announcer) of(i *instance.Instance) (x announcement, ok bool) {
	addr, err := netip.ParseAddr(i.Spec.Host)
	own := i.Peer == "" || i.Peer == a.self
	usable := err == nil && addr.Zone() == "" && (addr.IsGlobalUnicast() || addr.IsLinkLocalUnicast())
	if !own || !usable || i.Spec.Port == 0 || max(len(i.ID), 1+len(i.Service)) > maxLabel {
		return announcement{}, false
	}
	x = announcement{id: i.ID, service: i.Service, addr: addr.Unmap(), port: i.Spec.Port}
	var texts []string
	size := 0
	for _, text := range i.Texts() {
		if size += 1 + len(text); len(text) > 255 || size > maxText {
			break
		}
		texts = append(texts, text)
	}
	x.texts = strings.Join(texts, "\x00")
	return x, true
}

// tell says goodbye for what is not announced in this form any more, then announces what is new.
func (a *Announcer) tell() {
	now := a.networks()
	for k, t := range a.told {
		if x, ok := a.up[k]; !ok || x != t.announcement || now != a.joined {
			t.server.Shutdown()
			delete(a.told, k)
		}
	}
	a.joined = now
	var failed error
	for _, k := range slices.SortedFunc(maps.Keys(a.up), instance.Key.Compare) {
		if _, ok := a.told[k]; ok {
			continue
		}
		if len(a.told) == maxInstances {
			failed = fmt.Errorf("%d instances are more than %d", len(a.up), maxInstances)
			break
		}
		server, err := a.announce(a.up[k])
		if err != nil {
			failed = err
			break
		}
		a.told[k] = announced{a.up[k], server}
	}
	if failed == nil {
		a.warned = ""
	} else if text := failed.Error(); text != a.warned {
		a.warned = text
		a.log.Warn("multicast DNS does not announce all instances of this peer; the name server has them all", "announced", len(a.told), "error", failed)
	}
}

func (a *Announcer) leave() {
	for _, t := range a.told {
		t.server.Shutdown()
	}
}

func announceService(x announcement) (interface{ Shutdown() }, error) {
	// The library takes names and texts as they are written in zone files.
	id := strings.ReplaceAll(x.id, ".", `\.`)
	texts := strings.Split(strings.ReplaceAll(x.texts, `\`, `\\`), "\x00")
	host := strings.NewReplacer(".", "-", ":", "-").Replace(x.addr.String())
	return zeroconf.RegisterProxy(id, "_"+x.service+"._tcp", "local.", x.port, host, []string{x.addr.String()}, texts, nil, zeroconf.TTL(uint32(ttl/time.Second)))
}

// localAddresses describes the networks of this machine.
func localAddresses() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	all := make([]string, len(addrs))
	for i, a := range addrs {
		all[i] = a.String()
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
