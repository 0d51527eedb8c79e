// Package flood is the attackers of a night. Each speaks the real protocols, from hosts in
// several address prefixes. Both its rate and its processor time are
// bounded: without bounds it would take the processor from the peer, and the lab would measure the scheduler.
package flood

import (
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/testnet/process"
)

// Command is the first argument of a program that is a flood.
const Command = "flood"

// Callers is the name of the row that plays at the host of its victim.
const Callers = "callers"

// Ready is the line that a flood writes once it begins.
const Ready = "ready"

// Order describes a flood, as JSON in the second argument.
type Order struct {
	Row     string        // name of one of Rows
	Network network.Name  // of the victim
	Target  []string      // addresses of the victim, with its id
	From    []netip.Addr  // addresses of this machine: a host at each. A host dials the victim by its own family
	Most    time.Duration // the flood ends by itself after this time
	Part    float64       // of the rate of the row and of the processor: 0 to 1
	Goods   []Good        // what sellers sell
	Fronts  Fronts        // of the row Callers, which runs at the host of the victim
}

// Good is what a seller sells to the holders of grants.
type Good struct {
	Key    string
	At     []string // addresses of the seller, with its id
	Public bool     // strangers can dial them
}

// Report is what a flood did, written as JSON at its end.
type Report struct {
	Sent     int64            // messages
	Accepted int64            // by the victim, as far as it answers
	Refused  map[string]int64 // messages by the reason of the refusal, or of the failure
	Hosts    int              // identities used
	Stolen   int64            // bytes of goods without a grant
	Seconds  float64
	Cores    float64 // processor time a second
}

// Row is a kind of flood.
type Row struct {
	Name  string
	About string
	Rate  int // messages a second, of all hosts together

	play func(context.Context, *hostile) // of one host, until the context ends

	Stands bool // it lasts for a whole night
}

// Rows lists all kinds of floods, after a control that sends nothing: what it does to others is the doing of the common machine.
func Rows() []Row {
	return []Row{
		{"none", "no message: the attackers only use as much of a processor as a flood may", 1000, compute, false},
		{"store", "STORE of signed records for the cells of the honest offers, 100 of each provider", 1000, storing(spam), false},
		{"gossip", "signed records on the topics of the honest offers, 100 of each provider", 400, gossipValid, false},
		{"forged", "forged records on the same topics, with a new identity after 16", 400, gossipForged, false},
		{"dht", "lookups, and values of the group's key and of a foreign one", 800, floodDHT, false},
		{"greetings", "questions, garbage and silence on the group's protocols", 600, greet, false},
		{"connections", "Noise handshakes, and TCP connections without one", 200, connect, false},
		{"query", "QUERY and RESOLVE of the cells of the honest offers, 100 results each", 400, askQueries, false},
		{"bare", "STORE of offers with nothing to call, 100 of each provider, with stock and the best price", 200, storing(bare), false},
		{"stuffed", "STORE of offers with every word that a buyer may look for", 200, storing(stuffed), false},
		{"holders", "units of what is sold, taken by one identity after the other and never used", 10, hold, false},
		{"thieves", "streams to what is sold without a grant, with tokens of others", 50, steal, false},
		{"squatters", "places of a relay, taken by one identity after the other", 20, squat, false},
		{"deaf", "QUERY whose answers nobody reads, 32 at once from each address", 100, deaf, false},
		{Callers, "a program at the host of a peer: it registers, writes, asks, watches without reading, and keeps connections", 200, call, false},
		{"liars", "keepers with ground ids that withhold, answer late, or repeat old answers", 1000, lie, true},
		{denial, "keepers that ask all others to compare, every 3 s, and answer nobody", 10, mute, true},
		{"facades", "shops whose endpoints answer to half of the address prefixes alone", 10, facades, true},
		{"sync", "SYNC with false sums, and PULL of unknown records", 400, askSyncs, false},
	}
}

// denial is the row that plays alone: beside it hardly any answer of its first minute is complete, so that none can be wrong.
const denial = "mute"

// Find returns the rows of a list of names; "all" means all but the control and denial. Error: Invalid.
func Find(list string) (some []Row, err error) {
	rows := Rows()
	if list == "all" {
		return slices.DeleteFunc(rows, func(r Row) bool { return r.Name == "none" || r.Name == denial }), nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
		if i < 0 {
			var known []string
			for _, r := range rows {
				known = append(known, r.Name)
			}
			return nil, fault.Invalidf("roles", name, "must be all, or of %s", strings.Join(known, ","))
		}
		some = append(some, rows[i])
	}
	return some, nil
}

// Run is the program. Its argument is an Order. It writes Ready, floods until its input ends, which the parent holds open, and
// writes a Report.
func Run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	const op = "flood.Run"
	if len(args) != 1 {
		return fault.Invalidf("arguments", args, "must be one order")
	}
	var o Order
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	rows, err := Find(o.Row)
	if err != nil {
		return err
	}
	target, err := addresses(o.Target)
	if err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Most)
	defer cancel()
	go func() { // ends with the parent or this program
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	if _, err := io.WriteString(out, Ready+"\n"); err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	report := flood(ctx, rows[0], o, target)
	return fault.As(op, fault.Unavailable, json.NewEncoder(out).Encode(report))
}

func addresses(all []string) (to peer.AddrInfo, err error) {
	for _, address := range all {
		info, err := peer.AddrInfoFromString(address)
		if err != nil {
			return to, err
		}
		to.ID, to.Addrs = info.ID, append(to.Addrs, info.Addrs...)
	}
	return to, nil
}

// flood plays a row at every address until ctx ends.
func flood(ctx context.Context, row Row, o Order, target peer.AddrInfo) Report {
	t := &tally{refused: map[string]int64{}}
	p := newPace(row.Rate, o.Part)
	var work sync.WaitGroup
	for _, from := range o.From {
		work.Go(func() {
			h := &hostile{order: o, target: target, from: from, pace: p, tally: t}
			defer h.leave()
			row.play(ctx, h)
		})
	}
	work.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	seconds := time.Since(p.began).Seconds()
	return Report{
		Stolen: t.stolen, Sent: t.sent, Accepted: t.accepted, Refused: t.refused, Hosts: t.hosts,
		Seconds: seconds, Cores: (process.Own() - p.before).Seconds() / seconds,
	}
}

// maxReasons bounds the kinds of refusals in a report.
const maxReasons = 32

// tally counts what all hosts did.
type tally struct {
	mu             sync.Mutex // guards what follows
	sent, accepted int64
	refused        map[string]int64
	hosts          int
	stolen         int64
}

// steal counts bytes of goods.
func (t *tally) steal(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stolen += n
}

func (t *tally) host() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hosts++
}

// send counts n messages, and their fate: accepted without a reason.
func (t *tally) send(n int64, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent += n
	if reason == "" {
		t.accepted += n
		return
	}
	if _, known := t.refused[reason]; !known && len(t.refused) >= maxReasons {
		reason = "other"
	}
	t.refused[reason] += n
}
