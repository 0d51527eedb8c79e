package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/control"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

// playground is the network after the tour. It is for one goroutine at a time.
type playground struct {
	network *network.Network
	paused  map[*network.Peer]bool
	last    string // last order, and how it ended
}

// close lets every peer stop in the usual way.
func (g *playground) close() {
	for p := range g.paused {
		_ = p.Process.Resume() // it may have ended meanwhile
	}
}

// obey executes one order and returns its outcome in words.
func (g *playground) obey(ctx context.Context, o control.Order) (string, error) {
	text, err := g.execute(ctx, o)
	g.last = strings.Join(append([]string{o.Verb}, o.Args...), " ")
	if err != nil {
		g.last += ": failed"
	}
	return text, err
}

func (g *playground) execute(ctx context.Context, o control.Order) (string, error) {
	switch o.Verb {
	case "status":
		return string(tableOf(ctx, g.network.Peers, g.paused)), nil
	case "kill":
		return g.each(o.Args, func(p *network.Peer) (string, error) {
			p.Kill()
			delete(g.paused, p)
			return "killed by SIGKILL; heal starts it again on its data", nil
		})
	case "pause":
		return g.each(o.Args, g.pause)
	case "heal":
		return g.each(o.Args, func(p *network.Peer) (string, error) { return g.heal(ctx, p) })
	case "add":
		p, err := g.network.Add(ctx)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s joined; its page: %s\n", p.Name, page(p)), nil
	case "load":
		return g.load(ctx, o.Args)
	}
	return "", fault.Invalidf("order", o.Verb, "must be one of %s, not %q", strings.Join(verbs(), ", "), o.Verb)
}

// each does something to the named peers, or for heal without names to those that need it.
func (g *playground) each(names []string, do func(*network.Peer) (string, error)) (string, error) {
	peers, err := g.choose(names)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, p := range peers {
		text, err := do(p)
		if err != nil {
			return "", fault.New("testnet", fault.KindOf(err), "%s%s: %w", &out, p.Name, err)
		}
		fmt.Fprintf(&out, "%s: %s\n", p.Name, text)
	}
	return out.String(), nil
}

// choose finds the named peers before anything happens to one of them.
func (g *playground) choose(names []string) ([]*network.Peer, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(g.network.Peers), func(p *network.Peer) bool { return p.Running() && !g.paused[p] }), nil
	}
	var chosen []*network.Peer
	for _, name := range names {
		i := slices.IndexFunc(g.network.Peers, func(p *network.Peer) bool { return p.Name == name })
		if i < 0 {
			return nil, fault.Invalidf("peer", name, "must be peer-1 to peer-%d, not %q", len(g.network.Peers), name)
		}
		chosen = append(chosen, g.network.Peers[i])
	}
	return chosen, nil
}

func (g *playground) pause(p *network.Peer) (string, error) {
	if !p.Running() {
		return "", fault.New("testnet", fault.Conflict, "does not run: heal starts it again")
	}
	if err := p.Process.Pause(); err != nil {
		return "", err
	}
	g.paused[p] = true
	return "paused by SIGSTOP: its connections stay open, and nothing answers; heal continues it", nil
}

func (g *playground) heal(ctx context.Context, p *network.Peer) (string, error) {
	switch {
	case !p.Running():
		if err := g.network.Restart(ctx, p); err != nil {
			return "", err
		}
		return "started again on its data", nil
	case g.paused[p]:
		if err := p.Process.Resume(); err != nil {
			return "", err
		}
		delete(g.paused, p)
		return "goes on", nil
	}
	return "was well", nil
}

// load asks every usable peer for GPUs, without a pause, for some seconds.
func (g *playground) load(ctx context.Context, args []string) (string, error) {
	seconds, err := seconds(args)
	if err != nil {
		return "", err
	}
	return ask(ctx, g.usable(), time.Duration(seconds)*time.Second), nil
}

// usable lists the peers that answer.
func (g *playground) usable() []*network.Peer {
	return slices.DeleteFunc(g.network.Living(), func(p *network.Peer) bool { return g.paused[p] })
}

// browseEvery is less than a peer goes on to measure what somebody has asked for.
const browseEvery = 4 * time.Minute

// browse has each peer look through all offers, as many consumers do: peers measure the first ones that an answer shows.
func browse(ctx context.Context, peers []*network.Peer, all market.Selection) {
	var work sync.WaitGroup
	for _, p := range peers {
		work.Go(func() {
			for _, provider := range peers {
				for _, kind := range all.Kinds() {
					_, _ = p.Offers().Query(ctx, query.Query{Type: kind, ProviderID: provider.ID.String()}) // visitors see failures themselves
				}
			}
		})
	}
	work.Wait()
}

func seconds(args []string) (int, error) {
	const usual, most = 5, 60
	if len(args) == 0 {
		return usual, nil
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > most || len(args) > 1 {
		return 0, fault.Invalidf("seconds", args[0], "must be one number from 1 to %d, not %q", most, strings.Join(args, " "))
	}
	return n, nil
}

// invitation tells a visitor what to try. dir has the program and the socket.
func (g *playground) invitation(dir string) string {
	var b bytes.Buffer
	p := g.network.Living()[0]
	fmt.Fprintf(&b, "The network is yours. The page of %s: %s\nTry, in another terminal:\n\n", p.Name, page(p))
	fmt.Fprintf(&b, "  export BLACKHOLE_GRPC=%s\n  export PATH=%s:$PATH\n\n", p.GRPC, filepath.Clean(dir))
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	fmt.Fprintf(&b, "\nOrders, in this directory: go run ./testnet %s\n", strings.Join(verbs(), "|"))
	fmt.Fprintf(&b, "Choose this network by -at %s\nCtrl-C ends it.\n\n", filepath.Clean(dir))
	return b.String()
}

// commands are what a visitor may try first.
func commands() []string {
	return []string{
		"blackholed offer find --type compute --gpu --near Berlin --limit 3",
		"blackholed connect --type compute --gpu -- sh -c 'curl -s $BLACKHOLE_CONNECT'",
		"blackholed instance find " + network.Demo,
		"blackholed lock hold my/lock -- sh -c 'echo token $BLACKHOLE_LOCK_TOKEN'",
		"blackholed kv put my/key hello",
		"blackholed group status",
	}
}

// page is the address of the page of a peer.
func page(p *network.Peer) string { return "http://" + p.HTTP + "/ui/" }

// stay shows the network and obeys orders until the end of ctx.
func (s *session) stay(ctx context.Context) (err error) {
	g := &playground{network: s.network, paused: make(map[*network.Peer]bool)}
	defer g.close()
	if err := g.network.OpenDemo(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := g.network.AwaitWell(ctx); err != nil { // a visitor sees it too
		fmt.Fprintln(s.stderr, err)
	}
	screen := newScreen(s.out)
	var mu sync.Mutex // guards the playground, and the screen
	orders, err := control.Listen(s.scratch, func(ctx context.Context, o control.Order) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		text, err := g.obey(ctx, o)
		if screen.live {
			screen.draw(g.view(ctx, screen))
		}
		return text, err
	})
	if err != nil {
		return err
	}
	defer orders.Close()
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); work.Wait() }()
	work.Go(func() {
		every := time.NewTicker(browseEvery)
		defer every.Stop()
		for {
			mu.Lock()
			peers := g.usable()
			mu.Unlock()
			browse(ctx, peers, s.market.Where(market.Listing.Usable))
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
		}
	})
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		screen.draw(g.view(ctx, screen))
	}
	fmt.Fprint(s.out, g.invitation(s.scratch))
	look()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if screen.live {
			look()
		}
	}
}

// view is the table, cut to the rows of the terminal, and the last order.
func (g *playground) view(ctx context.Context, s *screen) []byte {
	table := tableOf(ctx, g.network.Peers, g.paused)
	if s.live {
		table = firstLines(table, s.rows()-2) // the last order, and the cursor
	}
	if g.last != "" {
		table = append(table, "last order: "+g.last+"\n"...)
	}
	return table
}

// give sends an order to a running testnet.
func give(ctx context.Context, c call) error {
	dir, rest, err := parseOrder(c)
	if err != nil {
		return err
	}
	if dir == "" {
		if dir, err = control.Here(ctx); err != nil {
			return err
		}
	}
	text, err := control.Send(ctx, dir, control.Order{Verb: c.name, Args: rest})
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.stdout, text)
	return fault.As("testnet.give", fault.Unavailable, err)
}
