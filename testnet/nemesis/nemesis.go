// Package nemesis breaks a network of real peers while clients use its coordination group, and
// checks that the group kept its promises: every process is blackholed as it ships, every fault is
// one that the system makes. Faults and load come from one seed; what they meet does not, for real
// processes run as they like. So a seed gives the same kind of day, and a violation its whole history.
//
// Package history has the checks. The way is that of Jepsen and of etcd's robustness tests.
package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	// Founders and Others of a Config that does not say.
	Founders, Others = 5, 2

	replaceAfter = 6 * time.Second // a voter's silence
	checkEvery   = time.Minute     // of providers, of which there are none
	formLimit    = 5 * time.Minute // from the peers' start to their group
	patience     = 2 * time.Minute // of one check by porcupine
	apiPort      = 8500            // of every peer, on its own loopback, and the next one
	listenPort   = 4001            // for other peers
	portsEach    = 4               // where all are on one machine
)

// Config is what is asked for.
type Config struct {
	Binary   string
	Dir      string // exists; gets data, logs, and the history if something was violated
	Seed     uint64
	Duration time.Duration // of load and faults
	Founders int           // peers that found the group, three of which vote
	Others   int           // peers that are never members

	// Faults to choose from, by name; none: all of them. See Faults.
	Faults []string
	// Pause bounds how long a process is stopped, and a cut lasts.
	Pause time.Duration
	// Recovery bounds how long it may take, after a fault is over, until every peer's clients are served.
	Recovery time.Duration
	// Progress gets a line for each fault.
	Progress io.Writer
}

// run is one run.
type run struct {
	Config
	*recorder
	lan     *lan.LAN // nil: all on loopback, and no cuts
	net     *network.Network
	peers   []*peer
	report  *Report
	rng     *rand.Rand // of the faults
	cuts    [][2]int   // from and to, as they are now
	ledger  history.Ledger
	beliefs history.Beliefs

	resources map[string]*resource // by lock
	resumed   atomic.Int64         // watches, elsewhere
}

// Run starts the peers, lets clients work on them and faults fall on them, and checks what came of
// it. The error is about the run itself; violations are in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	r := &run{Config: c, recorder: newRecorder(), rng: rand.New(rand.NewPCG(c.Seed, 1))}
	r.report, r.resources = newReport(c), make(map[string]*resource)
	for i := range lockKeys {
		r.resources[fmt.Sprintf("%s/%d", contended, i)] = new(resource)
	}
	if err := r.form(ctx); err != nil {
		return nil, err
	}
	defer r.dissolve()
	if err := r.play(ctx); err != nil {
		return nil, err
	}
	r.judge()
	return r.report, r.keep()
}

// form brings the network up and waits for its group.
func (r *run) form(ctx context.Context) (err error) {
	n := r.Founders + r.Others
	if r.lan, err = lan.New(n); err != nil {
		if fault.KindOf(err) != fault.Unsupported {
			return err
		}
		r.report.Skipped = append(r.report.Skipped, "partitions: "+err.Error())
		r.lan = nil
	}
	var free []string // ports of all peers at once, so that none is given twice
	if r.lan == nil {
		if free, err = process.FreePorts(n * portsEach); err != nil {
			return err
		}
	}
	r.peers = make([]*peer, n)
	for i := range r.peers {
		if r.peers[i], err = r.place(i, free); err != nil {
			r.dissolve()
			return err
		}
	}
	r.net, err = network.Start(ctx, network.Config{
		Peers: n, Binary: r.Binary, Dir: r.Dir, Check: checkEvery, Founders: r.Founders, Replace: replaceAfter, Keep: true,
		Adapt: func(i int, s *process.Spec) { s.Place, s.Log = r.peers[i].Place, r.peers[i].log },
		Dial:  func(i int) []dialOption { return r.peers[i].options() },
	})
	if err == nil {
		err = r.awaitGroup(ctx, formLimit)
	}
	if err != nil {
		r.dissolve()
	}
	return err
}

// dissolve ends every process and gives the LAN back.
func (r *run) dissolve() {
	if r.net != nil {
		for _, p := range r.net.Peers {
			_ = p.Resume() // so that it can be asked to stop
		}
		r.net.Stop()
	}
	if r.lan != nil {
		r.lan.Close()
	}
	for _, p := range r.peers {
		if p != nil {
			_ = p.log.Close()
		}
	}
}

// play runs load and faults for their time, then repairs everything and hears the watches out.
func (r *run) play(ctx context.Context) error {
	load := r.startLoad(ctx)
	watches := r.startWatches(ctx)
	err := r.torment(ctx, r.now()+r.Duration)
	if err == nil {
		err = r.heal(ctx)
	}
	load.stop()
	if err == nil {
		r.settle(ctx, watches)
	}
	watches.stop()
	if ctx.Err() != nil {
		return fault.Wrap("nemesis.Run", ctx.Err())
	}
	return err
}

// judge applies the checks.
func (r *run) judge() {
	for _, lost := range r.net.Lost() {
		r.violated("X1", "a peer ended by itself: %v", lost)
	}
	h := history.History{Ops: r.operations(), Events: r.ledger.Events()}
	verdicts := history.Check(h, time.Now, patience)
	verdicts = append(verdicts, r.ledger.Verdict(), r.beliefs.Verdict(), history.Verdict{Rule: "X, V", Violations: r.found()})
	r.report.Resumed = int(r.resumed.Load())
	r.report.conclude(h, verdicts)
}

// keep leaves what is needed to understand a violation, and else removes what the peers left.
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
	return fault.As(op, fault.Unavailable, r.write(r.Dir, r.report, r.ledger.Events()))
}

func (r *run) say(format string, args ...any) {
	if r.Progress != nil {
		fmt.Fprintf(r.Progress, "%7.1f s  "+format+"\n", append([]any{r.now().Seconds()}, args...)...)
	}
}
