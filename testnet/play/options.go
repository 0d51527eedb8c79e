package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/tour"
)

// maxPeers is the limit of one machine.
const maxPeers = 200

// tourHelp tells what the program does, with every subcommand.
func tourHelp() string {
	help := "Starts a local network of real peers, shows and checks what it can do, and leaves it to you.\n\nOrders to a running testnet, each with -h:\n  " +
		strings.Join(verbs(), ", ") + "\n\nOther commands, each with -h:"
	for _, s := range subcommands() {
		if s.about != "" {
			help += fmt.Sprintf("\n  %-10s %s", s.name, s.about)
		}
	}
	return help
}

// options are the command line.
type options struct {
	peers   int
	records int
	updates int
	tour    bool
	exit    bool
	json    bool
	keep    bool
	verbose bool
	data    string        // data directory of the peers; empty means a temporary directory
	idle    time.Duration // how long to measure idle peers in place of the tour; 0: not
	binary  string        // the blackholed to run; empty means to build it
}

// parseTour reads and validates the command line. It fails with Invalid, naming the flag.
func parseTour(c call) (options, error) {
	var o options
	f := c.flags(tourHelp())
	f.IntVar(&o.peers, "peers", 8, "peers to start, each a process")
	f.IntVar(&o.records, "records", 200, "services to register, at most 100 for each peer")
	f.DurationVar(&o.idle, "idle", 0, "measure idle peers for so `long`, in place of the tour, and end; checks of providers then have their default interval")
	f.IntVar(&o.updates, "updates", 100, "price updates that the tour measures")
	f.BoolVar(&o.tour, "tour", true, "walk through what the network promises")
	f.BoolVar(&o.exit, "exit", false, "end after the tour; status 0 only if every step held")
	f.BoolVar(&o.json, "json", false, "print one JSON object on standard output, and all else on standard error")
	f.BoolVar(&o.keep, "keep", false, "keep the peers' data")
	f.BoolVar(&o.verbose, "v", false, "show the peers' logs on standard error")
	f.StringVar(&o.data, "data", "", "`directory` for the peers' data (default a temporary one)")
	f.StringVar(&o.binary, "binary", "", "`file` of a built blackholed to run instead of building one")
	switch word := slices.Concat(c.args, []string{"-"})[0]; {
	case word == "cut":
		return o, usageError{fault.Invalidf("cut", "", "is no order: the peers share one loopback. pause is the nearest; nemesis -scenario partition and lab cut real networks")}
	case !strings.HasPrefix(word, "-"):
		return o, usageError{fault.Invalidf("arguments", c.args, "there are none, not %q; the orders are %s", c.args, strings.Join(verbs(), ", "))}
	}
	err := c.parse(f, func() error { return o.validate() })
	return o, err
}

func (o options) validate() error {
	least := 1
	if o.tour && o.idle == 0 {
		least = tour.MinPeers
	}
	each := config.Default().Discovery.Limits.ServicesPerProvider
	switch {
	case o.peers < least || o.peers > maxPeers:
		return fault.Invalidf("-peers", o.peers, "must be %d to %d, not %d", least, maxPeers, o.peers)
	case o.records < market.MinOffers || o.records > o.peers*each:
		return fault.Invalidf("-records", o.records, "must be %d to %d (%d for each of %d peers), not %d",
			market.MinOffers, o.peers*each, each, o.peers, o.records)
	case o.idle != 0 && o.idle < minIdle:
		return fault.Invalidf("-idle", o.idle, "must be at least %v, not %v", minIdle, o.idle)
	case o.updates < 1:
		return fault.Invalidf("-updates", o.updates, "must be at least 1, not %d", o.updates)
	}
	return nil
}
