package main

import (
	"context"
	"fmt"
	"os"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/oracle"
)

// playOracle compares answers and watches of a network of real peers with a loop over all offers. It holds without a difference, and if at
// most 1 % of the answers say that they are not complete.
func playOracle(ctx context.Context, c call) (held bool, err error) {
	var o oracle.Config
	peers, data, asJSON := 5, "", false
	f := c.flags("Puts random questions over all filters but domain to real peers, follows random watches, and compares both with a loop over all offers.")
	f.IntVar(&peers, "peers", peers, "1 to 40")
	f.IntVar(&o.Records, "records", 400, "offers to begin with, at most 80 for each peer")
	f.IntVar(&o.Questions, "questions", 10_000, "half of them after changes")
	f.IntVar(&o.Watches, "watches", 100, "1 to 200 for each peer")
	f.Uint64Var(&o.Seed, "seed", 1, "of offers, questions and changes")
	f.StringVar(&data, "data", "", "`directory` for data and logs (default a temporary one)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object on standard output")
	err = c.parse(f, func() error {
		const offers, watches = 80, 200 // of a peer, below its bounds
		switch {
		case peers < 1 || peers > 40:
			return fault.Invalidf("-peers", peers, "must be 1 to 40, not %d", peers)
		case o.Records < 1 || o.Records > offers*peers:
			return fault.Invalidf("-records", o.Records, "must be 1 to %d, not %d", offers*peers, o.Records)
		case o.Questions < 1:
			return fault.Invalidf("-questions", o.Questions, "must be at least 1, not %d", o.Questions)
		case o.Watches < 1 || o.Watches > watches*peers:
			return fault.Invalidf("-watches", o.Watches, "must be 1 to %d, not %d", watches*peers, o.Watches)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	dir, binary, done, err := workshop(ctx, "oracle", data)
	if err != nil {
		return false, err
	}
	defer func() { done(held) }()
	log, err := os.Create(dir + "/log")
	if err != nil {
		return false, fault.As("testnet.oracle", fault.Unavailable, err)
	}
	defer log.Close()
	if o.Network, err = network.Start(ctx, network.Config{Peers: peers, Binary: binary, Dir: dir, Founders: min(3, peers), Log: log}); err != nil {
		return false, err
	}
	defer o.Network.Stop()
	report, err := oracle.Play(ctx, o)
	if err != nil {
		return false, err
	}
	if asJSON {
		err = writeJSON(c.stdout, report)
	} else {
		err = report.Show(c.stdout)
	}
	for _, lost := range o.Network.Lost() {
		fmt.Fprintln(c.stderr, lost)
	}
	return err == nil && report.Held() && len(o.Network.Lost()) == 0, err
}
