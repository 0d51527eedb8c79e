package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/agents"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// troupe is the command line of the agents.
type troupe struct {
	agents.Config
	kill   time.Duration
	beside bool
	json   bool
}

// agentsReport is the object of -json. The first row is the way of this program.
type agentsReport struct {
	Rows    []agents.Row `json:"rows"`
	Leaders int          `json:"leaders_killed"`
}

// playAgents lets agents share files, by holds and guarded pushes, and beside it by lock files. It holds if the
// first way refuses something and loses nothing, and the last one loses something: otherwise the faults were none.
func playAgents(ctx context.Context, c call) (held bool, err error) {
	var o troupe
	data := ""
	f := c.flags("Agents share files of a git repository by hold and guarded pushes, while some freeze or die and leaders are killed; then by lock files.")
	f.IntVar(&o.Agents, "agents", 20, "1 to 100")
	f.IntVar(&o.Files, "files", 200, "3 to 10000")
	f.IntVar(&o.Edits, "edits", 200, "lines to add, each in one file")
	f.Uint64Var(&o.Seed, "seed", 1, "of what the agents do")
	f.DurationVar(&o.TTL, "ttl", 5*time.Second, "of a hold, whole seconds, at least 2s")
	f.DurationVar(&o.kill, "kill", 8*time.Second, "time that each leader leads; each begins all holds anew")
	f.BoolVar(&o.beside, "beside", true, "play the same with lock files")
	f.StringVar(&data, "data", "", "`directory` for data and logs (default a temporary one)")
	f.BoolVar(&o.json, "json", false, "print one JSON object on standard output, and all else on standard error")
	err = c.parse(f, func() error {
		switch {
		case o.Agents < 1 || o.Agents > 100:
			return fault.Invalidf("-agents", o.Agents, "must be 1 to 100, not %d", o.Agents)
		case o.Files < 3 || o.Files > 10_000:
			return fault.Invalidf("-files", o.Files, "must be 3 to 10000, not %d", o.Files)
		case o.Edits < 1:
			return fault.Invalidf("-edits", o.Edits, "must be at least 1, not %d", o.Edits)
		case o.TTL < 2*time.Second || o.TTL%time.Second != 0:
			return fault.Invalidf("-ttl", o.TTL, "must be whole seconds, at least 2s, not %v", o.TTL)
		case o.kill < time.Second:
			return fault.Invalidf("-kill", o.kill, "must be at least 1s, not %v", o.kill)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	var done func(bool)
	if o.Dir, o.Binary, done, err = workshop(ctx, "agents", data); err != nil {
		return false, err
	}
	defer func() { done(held) }()
	people := c.stdout
	if o.json {
		people = c.stderr
	}
	o.Progress = people
	report, err := o.play(ctx)
	if err != nil {
		return false, fault.New("testnet.agents", fault.KindOf(err), "%w; data and logs are in %s", err, o.Dir)
	}
	if err := report.show(people, o.TTL); err != nil {
		return false, fault.As("testnet.agents", fault.Unavailable, err)
	}
	if o.json {
		err = writeJSON(c.stdout, report)
	}
	own, last := report.Rows[0], report.Rows[len(report.Rows)-1]
	return err == nil && own.Held() && (!o.beside || own.Refused > 0 && last.Lost > 0), err
}

func (r agentsReport) show(w io.Writer, ttl time.Duration) error {
	if err := agents.Show(w, r.Rows); err != nil {
		return err
	}
	own := r.Rows[0]
	_, err := fmt.Fprintf(w, "\nwith hold: %d pushes, %d of which git could not merge at once; holds of %v, %d leaders killed, %d files held for ever\n",
		own.Pushes, own.Changed, ttl, r.Leaders, own.Left)
	return err
}

// play plays the way of this program on three peers that lose their leader again and again, and that of others on
// none.
func (o troupe) play(ctx context.Context) (report agentsReport, err error) {
	own, leaders, err := o.network(ctx)
	if err != nil {
		return report, err
	}
	report.Rows, report.Leaders = append(report.Rows, own), leaders
	if !o.beside {
		return report, nil
	}
	way, err := agents.ByStamps(o.Config)
	if err != nil {
		return report, err
	}
	beside, err := agents.Play(ctx, o.Config, way)
	report.Rows = append(report.Rows, beside)
	return report, err
}

func (o troupe) network(ctx context.Context) (row agents.Row, leaders int, err error) {
	const peers = 3
	log, err := os.Create(o.Dir + "/log")
	if err != nil {
		return row, 0, fault.As("testnet.agents", fault.Unavailable, err)
	}
	defer log.Close()
	n, err := network.Start(ctx, network.Config{Peers: peers, Binary: o.Binary, Dir: o.Dir, Founders: peers, Log: log})
	if err != nil {
		return row, 0, err
	}
	defer n.Stop()
	way, err := agents.ByHold(ctx, o.Config, []string{n.Peers[0].HTTP, n.Peers[1].HTTP, n.Peers[2].HTTP})
	if err != nil {
		return row, 0, err
	}
	life, end := context.WithCancel(ctx)
	killer := make(chan error, 1)
	go func() {
		var err error
		leaders, err = o.behead(life, n)
		killer <- err
	}()
	row, err = agents.Play(ctx, o.Config, way)
	end()
	if failed := <-killer; err == nil {
		err = failed
	}
	if lost := n.Lost(); err == nil && len(lost) > 0 {
		err = lost[0]
	}
	return row, leaders, err
}

// behead kills the leader again and again, until the end of ctx, and starts it anew. Each leads for a time: it
// begins all leases anew.
func (o troupe) behead(ctx context.Context, n *network.Network) (times int, err error) {
	for {
		if _, err = leaderOf(ctx, n); err == nil {
			err = await.Pause(ctx, o.kill)
		}
		var leader *network.Peer
		if err == nil {
			leader, err = leaderOf(ctx, n)
		}
		if ctx.Err() != nil {
			return times, nil
		}
		if err != nil {
			return times, err
		}
		leader.Kill()
		times++
		if err := n.Restart(context.WithoutCancel(ctx), leader); err != nil {
			return times, err
		}
	}
}

// leaderOf waits for a leader on which the peers agree.
func leaderOf(ctx context.Context, n *network.Network) (leader *network.Peer, err error) {
	err = await.Until(ctx, 2*time.Minute, "a leader", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		seen := map[string]bool{}
		for _, p := range n.Peers {
			s, err := p.Coordination().Group(ctx)
			if err != nil || s.Missing != "" {
				return fault.New("testnet.agents", fault.Unavailable, "%s: %s: %w", p.Name, s.Missing, err)
			}
			if seen[s.Leader] = true; p.ID.String() == s.Leader {
				leader = p
			}
		}
		if len(seen) != 1 || leader == nil {
			return fault.New("testnet.agents", fault.Unavailable, "no leader that all know")
		}
		return nil
	})
	return leader, err
}
