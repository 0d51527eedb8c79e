package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lab/flood"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	floodPeers   = 5
	floodQuiet   = 30 * time.Second // between two floods, and as long beside each
	floodShort   = 4 * time.Second
	floodWarm    = 10 * time.Second // of the honest programs before the first figures
	floodIndex   = 64 << 20         // bytes of each peer's index
	floodMemory  = 256 << 20        // that all floods together may add to the victim, with its index
	floodSamples = 500 * time.Millisecond
	floodEnds    = 20 * time.Second // for the report of a flood, after its end
)

// flooded lets hosts of four address prefixes flood one peer by one protocol after the other; TestFiveTokens does so by its API. The honest programs must go on; their times are figures, no properties.
func flooded(ctx context.Context, w *world) error {
	peers, err := both(ctx, w, floodPeers)
	if err != nil {
		return err
	}
	if err := acquainted(ctx, peers); err != nil {
		return err
	}
	leader, err := votes(ctx, peers, 3)
	if err != nil {
		return err
	}
	f := &floods{world: w, victim: leader, length: floodQuiet}
	if w.Short {
		f.length = floodShort
	}
	provider := peers[(slices.Index(peers, leader)+1)%len(peers)]
	w.say("the victim is %s, the leader of the group; the honest provider is %s", leader.name, provider.name)
	if f.from, err = attackers(w); err != nil {
		return err
	}
	if f.honest, err = newHonest(ctx, w, leader, provider); err != nil {
		return err
	}
	defer f.honest.stop(ctx)
	for _, p := range []*peer{leader, provider} {
		w.watch(ctx, p)
	}
	return f.run(ctx)
}

// both starts public peers with addresses of both families, in one group.
func both(ctx context.Context, w *world, n int) ([]*peer, error) {
	addresses := func(i int) []string { return []string{publicAddress(i), publicAddress6(i)} }
	return w.raise(ctx, n, w.internet, "server", addresses, func(p *peer, others []*peer) error {
		p.spec.Bootstrap = addressesOf(others[:min(len(others), 1)])
		p.spec.Settings = []string{"COORDINATION_ENABLED=true", "COORDINATION_CLIENTS=network", "COORDINATION_MEMBERS=auto", fmt.Sprintf("DISCOVERY_LIMITS_INDEX_BYTES=%d", floodIndex)}
		return shareKey(ctx, others, p) // a member proves the key of the network
	})
}

// attackers adds one machine with three addresses in each of three IPv4 /16 and of one IPv6 /48.
func attackers(w *world) (*host, error) {
	var all []string
	for i := range 3 {
		all = append(all,
			fmt.Sprintf("81.2.%d.10/32", 1+i), fmt.Sprintf("93.184.%d.10/32", 1+i), fmt.Sprintf("176.34.%d.10/32", 1+i),
			fmt.Sprintf("2a0b:6581:7:%x::10/128", 1+i))
	}
	return w.host(w.internet, "attackers", all...)
}

// floods are the floods of one victim.
type floods struct {
	*world
	victim *peer
	from   *host
	honest *honest
	length time.Duration
}

// run plays all floods, each between two quiet times.
func (f *floods) run(ctx context.Context) error {
	if err := await.Pause(ctx, min(floodWarm, f.length)); err != nil {
		return err
	}
	f.honest.turn()
	first := f.victim.now.Resident()
	before, _, err := f.during(ctx, "without a flood")
	if err != nil {
		return err
	}
	for _, row := range flood.Rows() {
		counts, err := f.counts(ctx)
		if err != nil {
			return err
		}
		beside, report, peak, err := f.beside(ctx, row)
		if err != nil {
			return err
		}
		after, _, err := f.during(ctx, "after "+row.Name)
		if err != nil {
			return err
		}
		now, err := f.counts(ctx)
		if err != nil {
			return err
		}
		f.print(row, report, []*window{before, beside, after})
		f.say("%-11s  victim counted %s", row.Name, difference(counts, now))
		f.say("%-11s  victim's memory: at most %d MiB beside the flood, %d MiB after it, %d MiB before the first flood",
			row.Name, peak>>20, f.victim.now.Resident()>>20, first>>20)
		if peak > first+floodMemory {
			f.violated("%s: the memory of the victim grew from %d to %d MiB, by more than %d", row.Name, first>>20, peak>>20, floodMemory>>20)
		}
		before = after
	}
	return f.sound(ctx, f.victim)
}

// during waits for a window of the honest programs, and returns it with the most memory that the victim had. A failure of an
// honest program is a broken property.
func (f *floods) during(ctx context.Context, what string) (in *window, peak uint64, err error) {
	began, before := time.Now(), f.used()
	for end := time.Now().Add(f.length); time.Now().Before(end); {
		if err := await.Pause(ctx, floodSamples); err != nil {
			return nil, 0, err
		}
		peak = max(peak, f.victim.now.Resident())
	}
	if !f.victim.running() {
		return nil, 0, f.victim.now.Failure()
	}
	seconds, after := time.Since(began).Seconds(), f.used()
	in = f.honest.turn()
	in.load = load{(after.victim - before.victim) / seconds, (after.others - before.others) / seconds, (after.lab - before.lab) / seconds}
	f.honest.mu.Lock()
	defer f.honest.mu.Unlock()
	for failure, times := range in.failed {
		f.violated("%s: an honest operation failed %d times: %s", what, times, failure)
	}
	return in, peak, nil
}

// used returns the processor time so far, in seconds.
func (f *floods) used() (all load) {
	for _, p := range f.peers {
		u, err := p.now.Used()
		switch {
		case err != nil: // it ended: judge says so
		case p == f.victim:
			all.victim = u.CPU.Seconds()
		default:
			all.others += u.CPU.Seconds()
		}
	}
	all.lab = process.Own().Seconds()
	return all
}

// beside floods the victim for a window.
func (f *floods) beside(ctx context.Context, row flood.Row) (in *window, r flood.Report, peak uint64, err error) {
	end, err := f.flood(ctx, row)
	if err != nil {
		return nil, r, 0, err
	}
	f.honest.turn() // what happened during the start of the flood is in no window
	in, peak, err = f.during(ctx, "beside "+row.Name)
	r, ended := end()
	f.honest.turn()
	return in, r, peak, errors.Join(err, ended)
}

// flood starts a flood, and returns its end.
func (f *floods) flood(ctx context.Context, row flood.Row) (end func() (flood.Report, error), err error) {
	const op = "lab.flood"
	o := flood.Order{
		Row: row.Name, Network: network.Default(f.victim.spec.Profile), Target: f.victim.addresses(),
		Most: 2*f.length + floodEnds,
	}
	for _, a := range f.from.addrs {
		o.From = append(o.From, a.Addr())
	}
	order, err := json.Marshal(o)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	cmd := exec.CommandContext(ctx, f.Program, flood.Command, string(order))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.Stderr, cmd.WaitDelay = f.victim.log, floodEnds
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	in, err := cmd.StdinPipe() // the flood ends with it, so also with this process
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	if err := f.from.space.Do(cmd.Start); err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != flood.Ready {
		_ = cmd.Process.Kill()
		return nil, fault.New(op, fault.Unavailable, "the flood %s did not begin: %q: %w", row.Name, line, errors.Join(err, cmd.Wait()))
	}
	return func() (r flood.Report, err error) {
		patience := time.AfterFunc(floodEnds, func() { _ = cmd.Process.Kill() })
		defer patience.Stop()
		_ = in.Close()
		err = json.NewDecoder(lines).Decode(&r)
		_, _ = io.Copy(io.Discard, lines)
		return r, fault.As(op, fault.Unavailable, errors.Join(err, cmd.Wait()))
	}, nil
}

// votes waits until all peers see a group with a number of voters.
func votes(ctx context.Context, all []*peer, voters int) (leader *peer, err error) {
	err = await.Until(ctx, time.Minute, fmt.Sprintf("%d voters", voters), func(ctx context.Context) error {
		for _, p := range all {
			g, err := p.Coordination().Group(ctx)
			if err == nil && (g.Leader == "" || g.Missing != "" || len(g.Voters) != voters) {
				err = fault.New("lab.votes", fault.Unavailable, "%s: leader %q, %d voters, missing %q", p.name, g.Leader, len(g.Voters), g.Missing)
			}
			if err != nil {
				return err
			}
			for _, q := range all {
				if q.id == g.Leader {
					leader = q
				}
			}
		}
		return nil
	})
	return leader, err
}
