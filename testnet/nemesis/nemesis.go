// Package nemesis breaks a network of real peers under clients of its group, and checks the
// promises of the group. Every process is the shipped blackholed, every fault comes from the
// operating system, but for wrong clocks: a file of the data directory moves them. One seed decides faults and load, but real processes run freely: a seed gives
// a similar day, and a violation leaves its whole history.
//
// Package history has the checks. The method follows Jepsen and the robustness tests of etcd.
package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	// Default Founders and Others of a Config.
	Founders, Others = 5, 2

	replaceAfter = 6 * time.Second // silence before a voter is replaced
	checkEvery   = time.Minute     // interval of provider checks; no providers exist
	formLimit    = 5 * time.Minute // from the start of the peers to their group
	patience     = 2 * time.Minute // of one porcupine check
)

// Config describes a run.
type Config struct {
	Binary string // built with process.ClockTag, or its clocks do not step
	// Upgrade is the binary of another version. Unless empty, the peers change to it one by one and back,
	// instead of the faults and the duration.
	Upgrade  string
	Dir      string // existing directory for data, logs, and the history of a violation
	Seed     uint64
	Duration time.Duration // of load and faults
	Founders int           // peers that bootstrap the group; three vote
	Others   int           // peers that never become members
	Buyers   int           // clients that take units of offers; 0: none

	// Faults names the faults to choose from; empty means all. See Faults.
	Faults []string
	// Pause bounds the pause of a process and the length of a cut.
	Pause time.Duration
	// Recovery bounds the time from the end of a fault until every peer serves its clients.
	Recovery time.Duration
	// Progress receives one line for each fault.
	Progress io.Writer
	// Stage has the hosts of a larger play, and what else happens there; nil: a LAN.
	Stage *Stage
}

// run is one run.
type run struct {
	Config
	*recorder
	ground Ground
	split  bool // the ground can cut
	net    *network.Network
	peers  []*peer
	ids    []string // of all peers, in their order
	report *Report
	seen   seen

	resources map[string]*resource // by lock
	resumed   atomic.Int64         // watches resumed at another peer
}

// seen is what clients saw besides their operations.
type seen struct {
	ledger  history.EventLog
	beliefs history.Beliefs
	offers  *history.Offers
	grants  *history.Grants
	answers answers
}

// Run starts the peers, applies load and faults, and checks the histories. The error concerns the
// run itself; the report has the violations.
func Run(ctx context.Context, c Config) (*Report, error) {
	r := &run{Config: c, recorder: newRecorder()}
	r.seen.offers, r.seen.grants = history.NewOffers(comparison), history.NewGrants(stock)
	r.report, r.resources = newReport(c), make(map[string]*resource)
	for i := range lockKeys {
		r.resources[fmt.Sprintf("%s/%d", contended, i)] = new(resource)
	}
	if err := r.form(ctx); err != nil {
		return nil, err
	}
	err := r.play(ctx)
	if err == nil {
		r.judge()
	}
	r.dissolve()
	if err != nil {
		return nil, err
	}
	return r.report, r.keep()
}

// form starts the network and waits for its group.
func (r *run) form(ctx context.Context) (err error) {
	n := r.Founders + r.Others
	if err := r.settleDown(n); err != nil {
		return err
	}
	places, err := r.ground.Places(n)
	if err != nil {
		r.dissolve()
		return err
	}
	for i, place := range places {
		p := &peer{Place: place, index: i, name: fmt.Sprintf("peer-%d", i+1)}
		r.peers = append(r.peers, p)
		if p.log, err = os.Create(filepath.Join(r.Dir, p.name+".log")); err != nil {
			r.dissolve()
			return fault.As("nemesis.form", fault.Unavailable, err)
		}
	}
	if r.Upgrade == "" { // without faults no disk is filled
		if err := r.mount(); err != nil {
			r.dissolve()
			return err
		}
	}
	c := network.Config{
		Peers: n, Binary: r.Binary, Dir: r.Dir, Check: checkEvery, Founders: r.Founders, Replace: replaceAfter, Keep: true,
		Adapt: func(i int, s *process.Spec) { r.adapt(r.peers[i], s) },
		Dial:  r.options,
	}
	if r.Stage != nil {
		c.Enough, c.Launched = r.Stage.Enough, r.Stage.Launched
	}
	r.net, err = network.Start(ctx, c)
	if err == nil {
		for _, p := range r.net.Peers {
			r.ids = append(r.ids, p.ID.String())
		}
		err = r.awaitGroup(ctx, formLimit)
	}
	if err != nil {
		r.dissolve()
	}
	return err
}

// dissolve ends every process and releases the LAN.
func (r *run) dissolve() {
	if r.net != nil {
		for _, p := range r.net.Peers {
			_ = p.Process.Resume() // a paused process cannot handle SIGTERM
		}
		r.net.Stop()
	}
	if r.split {
		r.ground.Close()
	}
	r.unmount()
	for _, p := range r.peers {
		_ = p.log.Close() // nil after a failed start
	}
}

// play runs load and faults, then repairs everything and waits for the watches.
func (r *run) play(ctx context.Context) error {
	sales, err := r.openSales(ctx)
	if err != nil {
		return err
	}
	load := r.startLoad(ctx)
	watches := r.startWatches(ctx)
	market := r.startMarket(ctx)
	buyers := r.startBuyers(ctx, sales)
	stop := r.beside(ctx)
	faults := newFaults(r)
	err = r.disturb(ctx, faults)
	if err == nil {
		err = faults.heal(ctx)
	}
	err = errors.Join(err, stop())
	load.stop()
	market.close()
	buyers.stop()
	if err == nil {
		r.settle(ctx, watches)
		r.say("the watches and the keys of all peers were compared")
		r.settleMarket(ctx)
		r.say("the offers at all peers were compared")
		r.settleSales(ctx, sales)
	}
	watches.stop()
	if ctx.Err() != nil {
		return fault.Wrap("nemesis.Run", ctx.Err())
	}
	return err
}

// disturb plays the faults, or the change of all programs.
func (r *run) disturb(ctx context.Context, f *faults) error {
	if r.Upgrade != "" {
		return f.roll(ctx)
	}
	return f.disturb(ctx, r.now()+r.Duration)
}

// judge applies the checks.
func (r *run) judge() {
	for _, lost := range r.net.Lost() {
		r.violated("X1", "a peer ended by itself: %v", lost)
	}
	h := history.History{Ops: r.operations(), Events: r.seen.ledger.Events()}
	results := history.Check(h, time.Now, patience)
	results = append(results, r.seen.ledger.Result(), r.seen.beliefs.Result(), history.Result{Rule: "X, V, T", Violations: r.found()})
	if r.sells() {
		results = append(results, r.seen.offers.Result())
	}
	if r.Buyers > 0 {
		results = append(results, r.seen.grants.Result())
	}
	r.report.Resumed, r.report.Answers, r.report.Trades = int(r.resumed.Load()), r.seen.offers.Counts(), r.seen.grants.Counts()
	r.report.Questions = r.seen.answers.counts()
	r.report.conclude(h, results)
}

// keep stores the evidence of a violation; without violations it removes the files of the peers.
func (r *run) keep() error {
	const op = "nemesis.keep"
	if len(r.report.Violations) == 0 {
		var errs []error
		for _, p := range r.peers {
			errs = append(errs, os.RemoveAll(filepath.Join(r.Dir, p.name)), os.RemoveAll(p.log.Name()))
		}
		return fault.As(op, fault.Unavailable, errors.Join(errs...))
	}
	r.report.Kept = r.Dir
	return fault.As(op, fault.Unavailable, r.write(r.Dir, r.report, r.seen.ledger.Events()))
}

func (r *run) say(format string, args ...any) {
	if r.Progress != nil {
		fmt.Fprintf(r.Progress, "%7.1f s  "+format+"\n", append([]any{r.now().Seconds()}, args...)...)
	}
}
