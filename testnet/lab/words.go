package lab

import (
	"context"
	"embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
	"github.com/blackhole/blackhole/testnet/script"
)

//go:embed scripts
var scripts embed.FS

// play is a scenario that is a script, in the language of testscript with the words below. PEER is a name, or a pattern as server-*
// for all that have such a name; ID is that of an offer. The condition [brief] holds in runs with -short.
type play struct {
	*world
	ctx     context.Context
	public  []*peer           // servers
	keys    map[string]string // of records, by the id of the offer
	started time.Time         // the last peer
	slept   time.Time         // the last peer
	leaving chan error        // a withdrawal under way
}

// scripted plays a script with variables, each NAME=VALUE.
func scripted(name string, set ...string) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		text, err := scripts.ReadFile("scripts/" + name + ".txt")
		if err != nil {
			return fault.As("lab.scripted", fault.Internal, err)
		}
		variables := make(map[string]string)
		for _, v := range set {
			name, value, _ := strings.Cut(v, "=")
			variables[name] = value
		}
		p := &play{world: w, ctx: ctx, keys: make(map[string]string), leaving: make(chan error, 1)}
		brief := func(cond string) (bool, error) {
			if cond != "brief" {
				return false, fault.Invalidf("condition", cond, "must be brief")
			}
			return w.Short, nil
		}
		log, held, err := script.Play(w.dir, name, string(text), p.words(), brief, variables)
		if err == nil && !held {
			err = fault.New("lab.scripted", fault.Conflict, "%s", log[max(0, strings.LastIndex(log, "FAIL:")):])
		}
		return err
	}
}

// words are the words of a script:
//
//	servers N [ipv6] [NAME=VALUE...]   public peers server-1 and so on, which know each other
//	server PEER I PEER...        another one, at the i-th address, that bootstraps from some
//	home PEER ADDRESS KIND       a peer behind router-PEER with a NAT, preserving or random; not started
//	home6 PEER ADDRESS           a peer with a public IPv6 address behind a filter
//	segment N lan4|lan6          hosts host-1 and so on of a local network, which know each other
//	vpn N                        the same in profile public, in the addresses of a VPN
//	office N                     peers desk-1 and so on behind one address
//	founder PEER PEER...         PEER is the only founder for some
//	set PEER NAME=VALUE...       settings
//	start, halt, sleep, wake PEER...
//	asleep LENGTH                wait until the last sleep has lasted
//	clock OFFSET PEER...         set clocks
//	badly                        all links lose and reorder, with 150 ms round trips
//	move HOST ADDRESS            to another access network
//	ready LIMIT CONNECTED PEER...
//	watch, unwatch PEER...       ask again and again, and judge complete answers
//	register, withdraw PEER ID; leaving PEER ID and left: a withdrawal in the background, and its end
//	offers N, drop N             register offer-0 and so on in turns; withdraw every other, which is then gone everywhere
//	find LIMIT ID PEER...        find it usable
//	know, gone LIMIT ID PEER...  find it; no more
//	exchange LIMIT start|now PEER PEER   use each other's offers, in time since the last start, or from now
//	trade LIMIT PEER PEER KIND   the second takes and reaches what the first sells, in time since the last start
//	share PEER...                take one lock in turn
//	printers PEER...             instances of all, found by all
//	path KIND PEER PEER          connected, and directly where a hole can be punched
//	reach PEER...                print how strangers reach it
//	doctor PEER AREA STATE WORD...; sound PEER...: doctor finds that; nothing
//	reads PEER KIND              the command of docs/nat.md prints what it says
//	condition PEER NAME true|false LIMIT; degraded PEER: its health says so
//	receipt PEER ID              a registration that must name the clock
//	stranded PEER                it says that it is alone, and gives no complete answer
//	observe, pause LENGTH
func (p *play) words() script.Words {
	w := script.Words{}
	each := func(f func(*peer) error) func([]string) error {
		return func(args []string) error { return p.each(args, f) }
	}
	within := func(f func(limit time.Duration, args []string) error) func([]string) error {
		return func(args []string) error {
			limit, err := time.ParseDuration(args[0])
			if err != nil {
				return fault.As("lab.words", fault.Invalid, err)
			}
			return f(limit, args[1:])
		}
	}
	w.Add("servers", 1, p.addServers)
	w.Add("server", 3, p.addServer)
	w.Add("home", 3, p.addHome)
	w.Add("home6", 2, func(args []string) error { return p.home6(p.ctx, args[0], args[1], p.public) })
	w.Add("segment", 2, p.addSegment)
	w.Add("vpn", 1, p.addVPN)
	w.Add("office", 1, p.addOffice)
	w.Add("founder", 2, func(args []string) error {
		first, err := p.those(args[:1])
		if err != nil {
			return err
		}
		return p.each(args[1:], func(one *peer) error { one.spec.Founders = []string{first[0].id}; return nil })
	})
	w.Add("set", 2, func(args []string) error {
		return p.each(args[:1], func(one *peer) error { one.spec.Settings = append(one.spec.Settings, args[1:]...); return nil })
	})
	w.Add("start", 1, each(func(one *peer) error { p.started = time.Now(); return one.start() }))
	w.Add("halt", 1, each(func(one *peer) error { one.stop(p.ctx); return nil }))
	w.Add("sleep", 1, each(func(one *peer) error { p.slept = time.Now(); return one.now.Pause() }))
	w.Add("wake", 1, each(func(one *peer) error { return one.now.Resume() }))
	w.Add("asleep", 1, within(func(length time.Duration, _ []string) error { return await.Pause(p.ctx, length-time.Since(p.slept)) }))
	w.Add("clock", 2, within(func(offset time.Duration, args []string) error {
		return p.each(args, func(one *peer) error { return process.SetClock(one.spec.Data, offset) })
	}))
	w.Add("badly", 0, func([]string) error {
		p.internet.SetQuality(netns.Quality{Delay: 75 * time.Millisecond, Loss: 0.05, Reorder: 0.1, Late: 20 * time.Millisecond})
		return nil
	})
	w.Add("move", 2, p.moveHost)
	w.Add("ready", 3, within(p.awaitAll))
	w.Add("watch", 1, each(func(one *peer) error { p.watch(p.ctx, one); return nil }))
	w.Add("unwatch", 1, each(func(one *peer) error { p.truth.leave(one); return nil }))
	w.Add("register", 2, func(args []string) error {
		return p.each(args[:1], func(one *peer) (err error) { p.keys[args[1]], err = p.register(p.ctx, one, args[1]); return err })
	})
	withdraw := func(args []string) error {
		return p.each(args[:1], func(one *peer) error { return p.withdraw(p.ctx, one, args[1]) })
	}
	w.Add("withdraw", 2, withdraw)
	w.Add("leaving", 2, func(args []string) error {
		go func() { p.leaving <- withdraw(args) }() // ends with its call; left waits for it
		return nil
	})
	w.Add("left", 0, func([]string) error { return <-p.leaving })
	w.Add("offers", 1, p.offers)
	w.Add("drop", 1, p.drop)
	w.Add("find", 3, within(func(limit time.Duration, args []string) error {
		peers, err := p.those(args[1:])
		if err != nil {
			return err
		}
		return p.allFind(p.ctx, peers, limit, p.ids(args[0])...)
	}))
	w.Add("know", 3, within(func(limit time.Duration, args []string) error {
		return p.each(args[1:], func(one *peer) error { return p.awaitKnown(p.ctx, one, p.keys[args[0]], limit) })
	}))
	w.Add("gone", 3, within(func(limit time.Duration, args []string) error {
		return p.each(args[1:], func(one *peer) error { return p.awaitGone(p.ctx, one, p.keys[args[0]], limit) })
	}))
	w.Add("exchange", 4, within(func(limit time.Duration, args []string) error {
		pair, err := p.those(args[1:])
		if err != nil {
			return err
		}
		if args[0] == "start" {
			limit -= time.Since(p.started)
		}
		return exchange(p.ctx, p.world, [2]*peer(pair), limit)
	}))
	w.Add("trade", 4, within(func(limit time.Duration, args []string) error {
		pair, err := p.those(args[:2])
		if err != nil {
			return err
		}
		return trade(p.ctx, p.world, pair[0], pair[1], natOf(args[2]), p.started.Add(limit))
	}))
	w.Add("path", 3, func(args []string) error {
		pair, err := p.those(args[1:])
		if err != nil {
			return err
		}
		return connected(p.ctx, p.world, [2]*peer(pair), natOf(args[0]), p.started.Add(usableLimit))
	})
	all := func(f func(context.Context, ...*peer) error) func([]string) error {
		return func(args []string) error {
			peers, err := p.those(args)
			if err != nil {
				return err
			}
			return f(p.ctx, peers...)
		}
	}
	w.Add("share", 1, all(func(ctx context.Context, peers ...*peer) error { return share(ctx, p.world, peers...) }))
	w.Add("printers", 1, all(func(ctx context.Context, peers ...*peer) error { return directory(ctx, p.world, peers) }))
	w.Add("reach", 1, all(p.sayReach))
	w.Add("sound", 1, all(p.sound))
	w.Add("doctor", 3, func(args []string) error {
		return p.each(args[:1], func(one *peer) error { return p.diagnosed(p.ctx, one, args[1], args[2], args[3:]...) })
	})
	w.Add("reads", 2, func(args []string) error {
		return p.each(args[:1], func(one *peer) error { return p.reads(p.ctx, one, natOf(args[1])) })
	})
	w.Add("condition", 4, p.condition)
	w.Add("degraded", 1, each(p.degraded))
	w.Add("receipt", 2, p.receipt)
	w.Add("stranded", 1, each(func(one *peer) error { return stranded(p.ctx, p.world, one) }))
	w.Add("observe", 0, func([]string) error { return p.observe(p.ctx) })
	w.Add("pause", 1, within(func(length time.Duration, _ []string) error { return await.Pause(p.ctx, length) }))
	return w
}

// those returns the peers of names and patterns.
func (p *play) those(patterns []string) (all []*peer, err error) {
	for _, pattern := range patterns {
		before := len(all)
		for _, one := range p.peers {
			if ok, _ := path.Match(pattern, one.name); ok {
				all = append(all, one)
			}
		}
		if len(all) == before {
			return nil, fault.Invalidf("PEER", pattern, "no peer has this name")
		}
	}
	return all, nil
}

func (p *play) each(patterns []string, f func(*peer) error) error {
	all, err := p.those(patterns)
	for _, one := range all {
		if err == nil {
			err = f(one)
		}
	}
	return err
}

// ids returns the keys of the offers of a pattern.
func (p *play) ids(pattern string) (keys []string) {
	for id, key := range p.keys {
		if ok, _ := path.Match(pattern, id); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

func natOf(name string) nat {
	if name == "random" {
		return random
	}
	return preserving
}

func (p *play) addServers(args []string) (err error) {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fault.As("servers", fault.Invalid, err)
	}
	address, settings := publicAddress, args[1:]
	if len(settings) > 0 && settings[0] == "ipv6" {
		address, settings = publicAddress6, settings[1:]
	}
	p.public, err = p.servers(p.ctx, n, address, settings...)
	return err
}

func (p *play) addServer(args []string) error {
	i, err := strconv.Atoi(args[1])
	if err != nil {
		return fault.As("server", fault.Invalid, err)
	}
	bootstrap, err := p.those(args[2:])
	if err == nil {
		_, err = p.server(p.ctx, args[0], i, bootstrap)
	}
	return err
}

func (p *play) addHome(args []string) error {
	_, _, err := p.home(p.ctx, args[0], args[1], natOf(args[2]), p.public)
	return err
}

func (p *play) addSegment(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fault.As("segment", fault.Invalid, err)
	}
	address := lan4
	if args[1] == "lan6" {
		address = lan6
	}
	return segment(p.ctx, p.world, n, address)
}

// addHosts starts peers without waiting for them. Each bootstraps from some, or from those before it.
func (p *play) addHosts(text string, on *netns.Network, name, address string, first int, from []*peer) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return fault.As("hosts", fault.Invalid, err)
	}
	_, err = p.raise(p.ctx, n, on, name, single(func(i int) string { return fmt.Sprintf(address, first+i) }), func(one *peer, others []*peer) error {
		if one.spec.Bootstrap = addressesOf(from); len(from) == 0 {
			one.spec.Bootstrap = addressesOf(others)
		}
		return nil
	})
	return err
}

func (p *play) addVPN(args []string) error {
	return p.addHosts(args[0], p.network(netns.Quality{}), "host", "100.64.0.%d/10", 11, nil)
}

func (p *play) addOffice(args []string) error {
	r, err := p.router("router", "62.10.1.1/32", preserving)
	if err != nil {
		return err
	}
	return p.addHosts(args[0], r.inside, "desk", "192.168.1.%d/24", 10, p.public)
}

func (p *play) moveHost(args []string) error {
	i := slices.IndexFunc(p.hosts, func(h *host) bool { return h.name == args[0] })
	if i < 0 {
		return fault.Invalidf("HOST", args[0], "no host has this name")
	}
	p.say("%s moves to %s", args[0], args[1])
	return p.hosts[i].move(args[1])
}

// awaitAll waits until peers are ready, with a number of connected peers.
func (p *play) awaitAll(limit time.Duration, args []string) error {
	connected, err := strconv.Atoi(args[0])
	if err != nil {
		return fault.As("ready", fault.Invalid, err)
	}
	began := time.Now()
	err = p.each(args[1:], func(one *peer) error {
		return one.awaitReady(p.ctx, max(limit-time.Since(began), time.Second), connected)
	})
	if err == nil {
		p.say("%s ready after %.1f s", strings.Join(args[1:], " "), time.Since(began).Seconds())
	}
	return err
}

// offers registers offers at the servers in turns, some at once.
func (p *play) offers(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fault.As("offers", fault.Invalid, err)
	}
	keys := make([]string, n)
	group, ctx := errgroup.WithContext(p.ctx)
	group.SetLimit(4)
	for i := range keys {
		group.Go(func() (err error) {
			keys[i], err = p.register(ctx, p.public[i%len(p.public)], fmt.Sprintf("offer-%d", i))
			return err
		})
	}
	err = group.Wait()
	for i, key := range keys {
		p.keys[fmt.Sprintf("offer-%d", i)] = key
	}
	return err
}

// drop withdraws every other of the offers, and waits until they are gone everywhere.
func (p *play) drop(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fault.As("drop", fault.Invalid, err)
	}
	for i := 0; i < n; i += 2 {
		if err := p.withdraw(p.ctx, p.public[i%len(p.public)], fmt.Sprintf("offer-%d", i)); err != nil {
			return err
		}
	}
	for i := 0; i < n; i += 2 {
		for _, one := range p.public {
			if err := p.awaitGone(p.ctx, one, p.keys[fmt.Sprintf("offer-%d", i)], time.Minute); err != nil {
				return err
			}
		}
	}
	p.say("%d services withdrawn, gone at all peers; %d packets were lost", n/2, p.internet.Dropped())
	return nil
}

func (p *play) condition(args []string) error {
	limit, err := time.ParseDuration(args[3])
	if err != nil {
		return fault.As("condition", fault.Invalid, err)
	}
	return p.each(args[:1], func(one *peer) error {
		message, err := one.awaitCondition(p.ctx, args[1], args[2] == "true", limit)
		if args[2] == "true" {
			p.say("%s, %s: %s", one.name, args[1], message)
		}
		return err
	})
}

func (p *play) degraded(one *peer) error {
	health, err := one.get(p.ctx, "/v1/health")
	if err == nil && !strings.Contains(health, "degraded") {
		err = fault.New("degraded", fault.Conflict, "%s does not say degraded: %s", one.name, health)
	}
	return err
}

// receipt registers an offer and withdraws it. The truth does not know it: peers with a right clock need not find it.
func (p *play) receipt(args []string) error {
	return p.each(args[:1], func(one *peer) error {
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		r, err := one.Offers().Register(ctx, market.Plain(args[1], 1))
		if err != nil {
			return fault.Wrap(one.name, err)
		}
		p.say("%s registered %s: %+v", one.name, args[1], r)
		if !strings.Contains(fmt.Sprintf("%+v", r), "clock") {
			return fault.New("receipt", fault.Conflict, "%s registered, and the receipt does not say that its clock is wrong", one.name)
		}
		_, err = one.Offers().Withdraw(ctx, args[1])
		return err
	})
}
