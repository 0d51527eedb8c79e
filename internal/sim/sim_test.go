package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
)

// environment names the variable that asks TestScenario for a scenario: JSON of Params.
const environment = "TEST_SIM"

// TestMain gives memory for time, as networks make much garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// TestScenario plays what the environment asks for.
func TestScenario(t *testing.T) {
	asked := os.Getenv(environment)
	if asked == "" {
		t.Skip("no " + environment)
	}
	var p Params
	require.NoError(t, json.Unmarshal([]byte(asked), &p))
	play(t, p)
}

// long skips a test of minutes of a processor.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("TEST_LONG") == "" {
		t.Skip("plays a network at size: set TEST_LONG=1, as .ci/night and testnet prove do")
	}
}

// TestNetwork plays one network through everything that go test has time for: it comes up, is used, and loses a third of
// its peers. At night, and in proofs, more are left than keep a cell. Larger ones are for "go run ./testnet sim".
func TestNetwork(t *testing.T) {
	p := Params{Scenario: "network", Peers: 24, Records: 60, Seed: 1, RTT: 50 * time.Millisecond}
	if os.Getenv("TEST_LONG") != "" {
		p.Peers = 32
	}
	play(t, p)
}

// TestPartition cuts a small network in halves that live on.
func TestPartition(t *testing.T) {
	long(t)
	play(t, Params{Scenario: "partition", Peers: 24, Records: 60, Seed: 1, RTT: 50 * time.Millisecond})
}

// play plays a scenario in a bubble of its own, prints its figures, and fails if a property is broken.
func play(t *testing.T, p Params) {
	t.Helper()
	if p.Peers >= 200 { // their memory is short, not their time
		defer debug.SetGCPercent(debug.SetGCPercent(60))
	}
	var f Figures
	var wrong []string
	wall := time.Now()
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, p)
		act(w, p.Scenario)
		f, wrong = w.report(), w.failures
		for property, n := range f.Broken {
			wrong = append(wrong, fmt.Sprintf("%s is broken %d times", property, n))
		}
		wrong = append(wrong, distrust(f)...)
		wrong = append(wrong, modesty(f)...)
	})
	f.WallSeconds = time.Since(wall).Seconds()
	t.Log(f.told())
	if len(wrong) > 0 {
		t.Errorf("%s %s", wrong, f.Told)
	}
}

// distrust lists how often honest peers took each other for liars: never. Only the scenario sybil has
// hostile peers.
func distrust(f Figures) (wrong []string) {
	for what, n := range f.Counts {
		if f.Scenario != "sybil" && strings.HasPrefix(what, distrusted) {
			wrong = append(wrong, fmt.Sprintf("%s: %d times among honest peers", what, n))
		}
	}
	return wrong
}

// modesty tells if more than 1 % of the answers of a quiet network call themselves incomplete. With few
// connections, or between partitions, some have to.
func modesty(f Figures) (wrong []string) {
	if f.Connections > 0 || f.Scenario == "partition" || f.Scenario == "sybil" {
		return nil
	}
	queries, incomplete, reasons := 0, 0, make(map[string]int)
	for _, g := range f.Stages {
		if !g.Quiet {
			continue
		}
		queries += g.Queries
		incomplete += g.Queries - g.Complete
		for why, n := range g.Reasons {
			reasons[why] += n
		}
	}
	if 100*incomplete > queries {
		wrong = append(wrong, fmt.Sprintf("%d of %d answers in quiet times are incomplete: %v", incomplete, queries, reasons))
	}
	return wrong
}

func act(w *cluster, scenario string) {
	switch scenario {
	case "network":
		w.grow()
		w.use(1, 20)
		w.decimate()
	case "join":
		playJoin(w)
	case "churn":
		playChurn(w)
	case "partition":
		playPartition(w)
	case "worldwide":
		playWorldwide(w)
	case "sybil":
		playSybil(w)
	case "sellers":
		playSellers(w)
	default:
		w.t.Fatalf("no scenario %q", scenario)
	}
}

func compiled(q query.Query) *queries.Plan {
	plan, err := queries.Compile(q, queries.Defaults{})
	if err != nil {
		panic(err) // the questions of this package are valid
	}
	return plan
}
