// Package lab plays scenarios of real networks: homes behind NAT, offices behind one address,
// lost packets, wrong clocks. Each peer is a process in its own Linux network namespace; package
// netns carries the packets. A scenario prints its observations and collects broken properties.
//
// The lab needs root on Linux, ip(8), nft(8) and /dev/net/tun: see Available. Peers, namespaces and
// devices end with the process.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
)

// Config describes a run.
type Config struct {
	Binary   string // blackholed, built with process.ClockTag
	Dir      string // parent of data directories and logs
	Short    bool   // fewer peers and shorter times
	Progress io.Writer
}

// Scenario is a network with its properties.
type Scenario struct {
	Name  string
	About string
	// Limit bounds one run, on a busy machine too.
	Limit time.Duration

	acts []act
}

// act is one part of a scenario, in a new network. Short runs play only the first act.
type act struct {
	name string
	play func(context.Context, *world) error
}

// homes are two homes behind NATs of a kind, with many public peers and with few.
func homes(kind, limit string) []act {
	return []act{
		{"6 public peers", scripted("homes", "n=6", "kind="+kind, "limit="+limit)},
		{"3 public peers", scripted("homes", "n=3", "kind="+kind, "limit="+limit)},
	}
}

// Scenarios lists all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{
			Name: "homes", Limit: 10 * time.Minute,
			About: "two homes behind NATs that preserve ports; each uses the services of the other",
			acts:  homes("preserving", "30s"),
		},
		{
			Name: "hard-nat", Limit: 10 * time.Minute,
			About: "the same behind NATs with random ports, where no hole can be punched",
			acts:  homes("random", "1m"),
		},
		{
			Name: "trade", Limit: 10 * time.Minute,
			About: "two homes trade: one takes and reaches a service on the loopback of the other, by three commands",
			acts: []act{
				{"NATs that preserve ports", scripted("trade", "n=4", "kind=preserving", "limit=60s")},
				{"NATs with random ports", scripted("trade", "n=4", "kind=random", "limit=60s")},
			},
		},
		{
			Name: "one-address", Limit: 10 * time.Minute,
			About: "50 peers (12 in short) behind one address; all become ready and find everything",
			acts:  []act{{"", scripted("one-address")}},
		},
		{
			Name: "lan", Limit: 5 * time.Minute,
			About: "5 hosts of one local network, found by multicast, with one group, without any configured address",
			acts:  []act{{"", scripted("lan", "address=lan4")}, {"profile public in a VPN", scripted("vpn")}},
		},
		{
			Name: "private", Limit: 5 * time.Minute,
			About: "a private network without multicast and a leaf, by the commands of docs/nat.md",
			acts:  []act{{"", privateNetwork}},
		},
		{
			Name: "ipv6", Limit: 10 * time.Minute,
			About: "IPv6 only: public servers and a home behind a firewall; a local network",
			acts:  []act{{"servers and a home", scripted("ipv6")}, {"local network", scripted("lan", "address=lan6")}},
		},
		{
			Name: "roaming", Limit: 10 * time.Minute,
			About: "a server and a home change their addresses; a peer sleeps for an hour",
			acts:  []act{{"", scripted("roaming")}},
		},
		{
			Name: "skew", Limit: 20 * time.Minute,
			About: "peers whose clocks are off by 1 minute, 10 minutes and a day, both ways",
			acts:  []act{{"", scripted("skew")}},
		},
		{
			Name: "bootstrap-gone", Limit: 10 * time.Minute,
			About: "the only bootstrap peer is gone: known peers rejoin, a new one waits for its return",
			acts:  []act{{"", scripted("bootstrap-gone")}},
		},
		{
			Name: "loss", Limit: 15 * time.Minute,
			About: "5 % of the packets lost, 150 ms round trip, reordering",
			acts:  []act{{"", scripted("loss")}},
		},
	}
}

// Result is the result of one run.
type Result struct {
	Seconds float64
	Broken  []string // properties that did not hold
	Data    string   // data and logs, kept after a broken property
}

// Held reports whether all properties held.
func (r Result) Held() bool { return len(r.Broken) == 0 }

// Available returns nil if this machine can run the lab. Error: Unsupported, with the reason.
func Available() error {
	const op = "lab.Available"
	space, err := netns.NewSpace()
	if err != nil {
		return err
	}
	defer space.Close()
	n := netns.NewNetwork(netns.Quality{})
	defer n.Close()
	if _, err := n.Plug(space, "eth0"); err != nil {
		return err
	}
	if err := space.Translate(random); err != nil {
		return fault.New(op, fault.Unsupported, "no NAT: %w", err)
	}
	return nil
}

// Run plays a scenario once. The result has the broken properties; the error concerns the run
// itself.
func Run(ctx context.Context, c Config, s Scenario) (Result, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, fault.New("lab.Run", fault.Timeout, "%s took longer than %v", s.Name, s.Limit))
	defer cancel()
	var result Result
	dir, err := os.MkdirTemp(c.Dir, s.Name+"-") // an earlier run keeps its data
	if err != nil {
		return result, fault.As("lab.Run", fault.Invalid, err)
	}
	c.Dir = dir
	acts := s.acts
	if c.Short {
		acts = acts[:1]
	}
	for i, a := range acts {
		broken, err := c.perform(ctx, filepath.Join(c.Dir, fmt.Sprint(i+1)), a)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = errors.Join(cause, err)
		}
		result.Broken = append(result.Broken, broken...)
		result.Seconds = time.Since(began).Seconds()
		if err != nil {
			result.Data = c.Dir
			return result, fault.Wrap(s.Name, err)
		}
	}
	if !result.Held() {
		result.Data = c.Dir
		return result, nil
	}
	return result, fault.As("lab.Run", fault.Unavailable, os.RemoveAll(c.Dir))
}

// perform plays an act in a new network. It returns the broken properties.
func (c Config) perform(ctx context.Context, dir string, a act) ([]string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fault.As("lab.perform", fault.Invalid, err)
	}
	w := newWorld(c, dir)
	defer w.close()
	if a.name != "" {
		w.say("%s", a.name)
	}
	err := a.play(ctx, w)
	w.judge(context.WithoutCancel(ctx))
	return w.found(), err
}
