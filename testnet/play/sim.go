package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxSimulated     = 1000 // limit of peers; each takes about 25 MiB with 100 connections, 16 MiB with light links
	leastConnections = 24
	maxEnemies       = 300
)

// simulation holds the parameters of a simulated network. Its JSON matches internal/sim.Params.
type simulation struct {
	Scenario string        `json:"scenario"`
	Peers    int           `json:"peers"`
	Records  int           `json:"records"`
	Enemies  int           `json:"enemies"`
	Seed     uint64        `json:"seed"`
	RTT      time.Duration `json:"rtt"`
	Loss     float64       `json:"loss"`
	Verbose  bool          `json:"verbose"`

	Connections int  `json:"connections"`
	Light       bool `json:"light"`
}

func scenarios() []string { return []string{"join", "churn", "partition", "hotcell", "sybil"} }

// simulate plays a network in virtual time: it builds the tests of internal/sim and runs the
// scenario. It holds without a broken property.
func simulate(ctx context.Context, c call) (held bool, err error) {
	s, raw, err := parseSimulation(c)
	if err != nil {
		return false, err
	}
	return true, s.run(ctx, raw, c.stdout, c.stderr)
}

// parseSimulation reads and validates the command line. It fails with Invalid, naming the flag.
func parseSimulation(c call) (s simulation, raw bool, err error) {
	f := c.flags("Plays a network of whole peers in virtual time, in one process, and checks its answers.")
	f.StringVar(&s.Scenario, "scenario", "join", strings.Join(scenarios(), ", "))
	f.IntVar(&s.Peers, "peers", 50, "peers to begin with")
	f.IntVar(&s.Records, "records", 0, "services to register (default 3 for each peer)")
	f.IntVar(&s.Enemies, "enemies", 0, "hostile peers with ground ids, of sybil (default 3 for 10 honest peers)")
	f.Uint64Var(&s.Seed, "seed", 1, "of keys, offers, questions and faults")
	f.DurationVar(&s.RTT, "rtt", 50*time.Millisecond, "round trip between any two peers")
	f.Float64Var(&s.Loss, "loss", 0, "part of the packets that is lost, 0 to 0.5")
	f.IntVar(&s.Connections, "connections", 0, "of each peer: what a simulation costs, and it becomes another network with few (default the profile's)")
	f.BoolVar(&s.Light, "light", false, "links without packets, encryption and limits of bandwidth: as fast as QUIC in virtual time, at half the cost")
	f.BoolVar(&raw, "json", false, "print the figures as one JSON object on standard output, and all else on standard error")
	err = c.parse(f, func() error {
		if s.Records == 0 {
			s.Records = 3 * s.Peers
		}
		s.Verbose = true
		return s.validate()
	})
	return s, raw, err
}

func (s simulation) validate() error {
	const most = 100 // offers of one provider
	switch {
	case !slices.Contains(scenarios(), s.Scenario):
		return fault.Invalidf("-scenario", s.Scenario, "must be one of %s", strings.Join(scenarios(), ", "))
	case s.Peers < 4 || s.Peers > maxSimulated:
		return fault.Invalidf("-peers", s.Peers, "must be 4 to %d, not %d", maxSimulated, s.Peers)
	case s.Records < 1 || s.Records > most*s.Peers:
		return fault.Invalidf("-records", s.Records, "must be 1 to %d, not %d", most*s.Peers, s.Records)
	case s.Enemies < 0 || s.Enemies > maxEnemies:
		return fault.Invalidf("-enemies", s.Enemies, "must be 0 to %d, not %d", maxEnemies, s.Enemies)
	case s.Enemies > 0 && s.Scenario != "sybil":
		return fault.Invalidf("-enemies", s.Enemies, "belongs to -scenario sybil")
	case s.Connections < 0 || s.Connections > 0 && s.Connections < leastConnections:
		return fault.Invalidf("-connections", s.Connections, "%[2]d is too small: use 0, or %[1]d and more", leastConnections, s.Connections)
	case s.RTT < 0 || s.RTT > 2*time.Second:
		return fault.Invalidf("-rtt", s.RTT, "must be 0 to 2s, not %s", s.RTT)
	case !(s.Loss >= 0 && s.Loss <= 0.5):
		return fault.Invalidf("-loss", s.Loss, "must be 0 to 0.5, not %v", s.Loss)
	}
	return nil
}

// run fails with Conflict after a broken property.
func (s simulation) run(ctx context.Context, raw bool, stdout, stderr io.Writer) error {
	const op = "testnet.sim"
	people := stdout
	if raw {
		people = stderr
	}
	dir, remove, err := scratch("sim")
	if err != nil {
		return err
	}
	defer remove(true)
	fmt.Fprintln(people, "building the simulation ...")
	binary := filepath.Join(dir, "sim.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "github.com/blackhole/blackhole/internal/sim")
	if out, err := build.CombinedOutput(); err != nil {
		return fault.New(op, fault.Unavailable, "go test -c ./internal/sim: %w\n%s", err, out)
	}
	line, failed := s.play(ctx, binary, people, stderr)
	switch {
	case ctx.Err() != nil:
		return fault.Wrap(op, ctx.Err())
	case line == nil:
		return fault.New(op, fault.Unavailable, "the simulation ended without figures: %v", failed)
	case raw:
		fmt.Fprintf(stdout, "%s\n", line)
	default:
		if err := showFigures(stdout, line); err != nil {
			return err
		}
	}
	if failed != nil {
		return fault.New(op, fault.Conflict, "a property is broken, or an operation failed")
	}
	return nil
}

// play runs the test and returns its line of figures, nil without one. The error reports the end
// of the test.
func (s simulation) play(ctx context.Context, binary string, people, stderr io.Writer) ([]byte, error) {
	asked, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	links := ""
	if s.Light {
		links = ", light links"
	}
	fmt.Fprintf(people, "playing %s: %d peers, %d services, seed %d, round trip %s, loss %g%s ...\n",
		s.Scenario, s.Peers, s.Records, s.Seed, s.RTT, s.Loss, links)
	test := exec.CommandContext(ctx, binary, "-test.run=^TestScenario$", "-test.timeout=0", "-test.v")
	test.Env = append(os.Environ(), "BLACKHOLE_SIM="+string(asked))
	test.Stderr = stderr
	pipe, err := test.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := test.Start(); err != nil {
		return nil, err
	}
	line := follow(pipe, people)
	return line, test.Wait()
}

// follow prints the stages as they end and returns the line of figures, nil without one.
func follow(r io.Reader, people io.Writer) (figures []byte) {
	const longest = 16 << 20
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		if line, ok := bytes.CutPrefix(lines.Bytes(), []byte("sim ")); ok {
			figures = bytes.Clone(line)
		} else if line, ok := bytes.CutPrefix(lines.Bytes(), []byte("stage ")); ok {
			fmt.Fprintf(people, "  %s\n", line)
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line above the limit must not block the test
	return figures
}

// figures are the printed part of the simulation's figures; see internal/sim.Figures.
type figures struct {
	VirtualSeconds float64         `json:"virtual_s"`
	WallSeconds    float64         `json:"wall_s"`
	MemoryMiB      float64         `json:"memory_mib"`
	Packets        int64           `json:"packets"`
	MiB            float64         `json:"mib"`
	Queries        int             `json:"queries"`
	Complete       int             `json:"complete"`
	Incomplete     int             `json:"incomplete"`
	Failed         int             `json:"failed"`
	Overstated     int             `json:"overstated"`
	Unseen         int             `json:"unseen"`
	Publish        timings         `json:"publish"`
	First          timings         `json:"first_query"`
	Later          timings         `json:"later_query"`
	Visible        timings         `json:"update_visible"`
	Load           json.RawMessage `json:"load"`
	Broken         map[string]int  `json:"broken"`
	Excused        map[string]int  `json:"excused"`
	Told           []string        `json:"told"`
}

type timings struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func showFigures(w io.Writer, line []byte) error {
	var f figures
	if err := json.Unmarshal(line, &f); err != nil {
		return fault.As("testnet.sim", fault.Internal, err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nvirtual time\tN\tP50\tP95\tP99\tMAX\n")
	for _, row := range []struct {
		name string
		timings
	}{{"publish one service", f.Publish}, {"first query of a peer", f.First}, {"later queries", f.Later}, {"update visible to a watcher", f.Visible}} {
		fmt.Fprintf(t, "%s\t%d\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\n", row.name, row.N, row.P50, row.P95, row.P99, row.Max)
	}
	fmt.Fprintf(t, "\nqueries\t%d: %d complete, %d incomplete, %d failed; %d said to be complete in unquiet times and were not\n",
		f.Queries, f.Complete, f.Incomplete, f.Failed, f.Overstated)
	fmt.Fprintf(t, "updates that a watcher missed\t%d\n", f.Unseen)
	if len(f.Load) > 0 {
		fmt.Fprintf(t, "queries served by a keeper\t%s\n", f.Load)
	}
	fmt.Fprintf(t, "traffic\t%.0f MiB in %d packets\n", f.MiB, f.Packets)
	fmt.Fprintf(t, "cost\t%.0f s of virtual time in %.0f s, %.0f MiB\n", f.VirtualSeconds, f.WallSeconds, f.MemoryMiB)
	if err := t.Flush(); err != nil {
		return fault.As("testnet.sim", fault.Unavailable, err)
	}
	showBreaches(w, "broken", f.Broken)
	showBreaches(w, "not demanded here, and broken", f.Excused)
	for _, told := range f.Told {
		fmt.Fprintf(w, "  %s\n", strings.TrimSpace(told))
	}
	return nil
}

func showBreaches(w io.Writer, how string, properties map[string]int) {
	if len(properties) == 0 {
		fmt.Fprintf(w, "%s: none\n", how)
		return
	}
	for _, p := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(w, "%s: %s, %d times\n", how, p, properties[p])
	}
}
