package startup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Parameters of a plan.
const (
	spread    = 2500 * time.Millisecond // longest time from the first start to the last
	uptime    = 2 * time.Second         // longest uptime of a killed peer
	downtime  = time.Second             // longest time until its restart
	busy      = 4500 * time.Millisecond // duration of registrations
	maxKilled = 4
	arrivals  = 32              // applications that register
	movers    = 6               // of these register again later, with any answering peer
	leavers   = 6               // of these deregister later
	cutApps   = 8               // applications that register during the cut
	cutMovers = 8               // of the remaining arrivals register again just before the cut
	cutLeft   = 6               // of these deregister during the cut, through any answering peer
	shortCut  = 2 * time.Second // shortest cut; the longest is twice as long
	longCut   = 17 * time.Second
	longEvery = 10 // seeds
)

// outage is the end and the return of one process, counted from its first start.
type outage struct {
	kill time.Duration // 0 means none
	back time.Duration
}

// visit is the plan of one application.
type visit struct {
	id    string
	at    time.Duration
	again time.Duration // time of the second registration; 0 means never
	leave time.Duration // time of the deregistration; 0 means never
}

// plan is the course of one network, drawn from a seed alone.
type plan struct {
	starts  []time.Duration // of each peer
	outages []outage        // of each peer
	visits  []visit
	cut     time.Duration
	side    []int   // the peers on one side of the cut
	during  []visit // during the cut, counted from its start
	moving  []visit // just before the cut
	parting []visit // during the cut, counted from its start
}

func draw(seed uint64, peers int) plan {
	rng := rand.New(rand.NewPCG(seed, 3))
	within := func(least, most time.Duration) time.Duration {
		return least + time.Duration(rng.Int64N(int64(most-least)))
	}
	p := plan{starts: make([]time.Duration, peers), outages: make([]outage, peers)}
	length := within(0, spread) + 1 // from all at once to one after the other
	for i := range p.starts {
		p.starts[i] = within(0, length)
	}
	for _, i := range rng.Perm(peers)[:rng.IntN(min(maxKilled, peers)+1)] {
		kill := within(50*time.Millisecond, uptime)
		p.outages[i] = outage{kill: kill, back: kill + within(0, downtime)}
	}
	for i := range arrivals {
		v := visit{id: fmt.Sprintf("app-%02d", i), at: within(0, busy)}
		switch {
		case i < movers:
			v.again = v.at + within(0, busy)
		case i < movers+leavers:
			v.leave = v.at + within(0, busy)
		}
		p.visits = append(p.visits, v)
	}
	if p.cut = within(shortCut, 2*shortCut); seed%longEvery == 0 {
		p.cut += longCut - shortCut
	}
	p.side = rng.Perm(peers)[:1+rng.IntN(peers/2)]
	for i := range cutApps {
		p.during = append(p.during, visit{id: fmt.Sprintf("cut-%02d", i), at: within(0, shortCut)})
	}
	staying := p.visits[movers+leavers:]
	for _, v := range staying[:cutMovers] {
		p.moving = append(p.moving, visit{id: v.id})
	}
	for _, v := range staying[cutMovers : cutMovers+cutLeft] {
		p.parting = append(p.parting, visit{id: v.id, at: within(0, shortCut)})
	}
	return p
}

// order lists the peers by start, and marks the killed ones.
func (p plan) order() string {
	all := make([]int, len(p.starts))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, func(a, b int) int { return int(p.starts[a] - p.starts[b]) })
	names := make([]string, len(all))
	for n, i := range all {
		names[n] = fmt.Sprint(i + 1)
		if p.outages[i].kill > 0 {
			names[n] += "!"
		}
	}
	return strings.Join(names, " ")
}

func (p plan) killed() (n int) {
	for _, o := range p.outages {
		if o.kill > 0 {
			n++
		}
	}
	return n
}
