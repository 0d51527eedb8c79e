package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxSimulated     = 1000 // limit of peers; each takes about 25 MiB with 100 connections
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

	Connections int `json:"connections"`
}

func scenarios() []string { return []string{"join", "churn", "partition", "worldwide", "sybil"} }

// simulate plays a network in virtual time, by the tests of internal/sim. It holds without a broken property.
func simulate(ctx context.Context, c call) (held bool, err error) {
	s, err := parseSimulation(c)
	if err != nil {
		return false, err
	}
	return true, s.run(ctx, c.stdout, c.stderr)
}

// parseSimulation reads and validates the command line. It fails with Invalid, naming the flag.
func parseSimulation(c call) (s simulation, err error) {
	f := c.flags("Plays a network of whole peers in virtual time, in one process, and checks its answers.")
	f.StringVar(&s.Scenario, "scenario", "join", strings.Join(scenarios(), ", "))
	f.IntVar(&s.Peers, "peers", 50, "peers to begin with")
	f.IntVar(&s.Records, "records", 0, "services to register (default 3 for each peer)")
	f.IntVar(&s.Enemies, "enemies", 0, "hostile peers with ground ids, of sybil (default 3 for 10 honest peers)")
	f.Uint64Var(&s.Seed, "seed", 1, "of keys, offers, questions and faults")
	f.DurationVar(&s.RTT, "rtt", 50*time.Millisecond, "round trip between any two peers")
	f.Float64Var(&s.Loss, "loss", 0, "part of the packets that is lost, 0 to 0.5")
	f.IntVar(&s.Connections, "connections", 0, "of each peer: what a simulation costs, and it becomes another network with few (default the profile's)")
	err = c.parse(f, func() error {
		if s.Records == 0 {
			s.Records = 3 * s.Peers
		}
		s.Verbose = true
		return s.validate()
	})
	return s, err
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

// run plays the test of internal/sim. It fails with Conflict after a broken property.
func (s simulation) run(ctx context.Context, stdout, stderr io.Writer) error {
	const op = "testnet.sim"
	asked, err := json.Marshal(s)
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	fmt.Fprintf(stdout, "playing %s; the first time it compiles for a minute ...\n", asked)
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-run=^TestScenario$", "-timeout=0", "-v", "github.com/blackhole/blackhole/internal/sim")
	test.Env = append(os.Environ(), "TEST_SIM="+string(asked))
	test.Stdout, test.Stderr = stdout, stderr
	switch err := test.Run(); {
	case ctx.Err() != nil:
		return fault.Wrap(op, ctx.Err())
	case err != nil:
		return fault.New(op, fault.Conflict, "a property is broken, or an operation failed: %w", err)
	}
	return nil
}
