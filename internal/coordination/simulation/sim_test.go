package simulation

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/cryptotest"
	"time"

	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Each seed is some virtual time under faults.
const (
	seeds   = 100 // at night, and of a proof
	few     = 20  // of go test
	virtual = 60 * time.Second
)

func setting[T any](t *testing.T, name string, usual T, parse func(string) (T, error)) T {
	text := os.Getenv("TEST_" + name)
	if text == "" {
		return usual
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("TEST_%s: %v", name, err)
	}
	return v
}

// usually returns the number of seeds of go test, or the larger one of the night.
func usually(few, many int) int {
	if os.Getenv("TEST_LONG") == "" {
		return few
	}
	return many
}

// campaign returns the number of seeds, the first one, and the virtual time of each.
func campaign(t *testing.T, usual int, lasts time.Duration) (n, from int, d time.Duration) {
	return setting(t, "SEEDS", usual, strconv.Atoi), setting(t, "FROM", 1, strconv.Atoi), setting(t, "VIRTUAL", lasts, time.ParseDuration)
}

func TestSeeds(t *testing.T) {
	n, from, d := campaign(t, usually(few, seeds), virtual)
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var all figures
	var lived time.Duration
	began, cpu := time.Now(), spent()
	for seed := from; seed < from+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := playSeed(t, uint64(seed), d)
			all.add(c.figures)
			lived += c.now
		})
	}
	cpu = spent() - cpu
	t.Logf("%d seeds, %v virtual in %v (%v of CPU): %.0f virtual seconds a second, %.0f a CPU second",
		n, lived.Round(time.Second), time.Since(began).Round(time.Second/10), cpu.Round(time.Second/10),
		lived.Seconds()/time.Since(began).Seconds(), lived.Seconds()/cpu.Seconds())
	t.Logf("%+v", all)
}

func playSeed(t *testing.T, seed uint64, d time.Duration) *cluster {
	cryptotest.SetGlobalRandom(t, seed)
	c := newCluster(seed)
	playCluster(t, seed, c, d)
	return c
}

func playCluster(t *testing.T, seed uint64, c *cluster, d time.Duration) {
	if err := c.play(d); err != nil {
		tail := c.story[max(0, len(c.story)-60):]
		t.Errorf("seed %d %v\n%s", seed, err, strings.Join(tail, "\n"))
	}
}

// The outage after a kill of the leader lasts until the next election: at least an election timeout after its
// last heartbeat, and at most two unless votes are split.
func TestLeaderLoss(t *testing.T) {
	const kills = 60
	cryptotest.SetGlobalRandom(t, 1)
	var lasted []time.Duration
	for seed := range uint64(kills) {
		c := newCluster(seed)
		c.run(5*time.Second + c.between(0, time.Second))
		leader := c.leader()
		if leader == nil || c.voters == 1 {
			continue
		}
		c.outage = time.Minute
		leader.crash()
		leader.silent = false
		from := c.now
		c.spawn(func(p *proc) {
			c.newClient(97).do(p, &apiv1.LeaseGrantRequest{TtlMs: 5000}, time.Minute)
			lasted = append(lasted, c.now-from)
		})
		for n := len(lasted); len(lasted) == n && c.fail == nil && c.now < from+time.Minute; {
			c.run(c.now + 100*time.Millisecond)
		}
		c.end()
		if c.fail != nil {
			t.Fatalf("seed %d %v", seed, c.fail)
		}
		for _, n := range c.nodes {
			n.shut()
		}
	}
	slices.Sort(lasted)
	t.Logf("%d leaders killed: served again after %v (median), %v (99 %%), %v at most",
		len(lasted), lasted[len(lasted)/2], lasted[len(lasted)*99/100], lasted[len(lasted)-1])
	if most := lasted[len(lasted)-1]; most > 4*time.Second {
		t.Errorf("nobody was served for %v", most)
	}
}

// spent returns the CPU time of the process.
func spent() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A seed plays the same way each time: otherwise its findings cannot be reproduced.
func TestSeedsRepeat(t *testing.T) {
	var told [2]string
	for i := range told {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := playSeed(t, 2, 20*time.Second)
			told[i] = fmt.Sprintf("%+v %d %v", c.figures, c.made, strings.Join(c.story, "\n"))
		})
	}
	if told[0] != told[1] {
		t.Errorf("the same seed went two ways:\n%s\n\n%s", told[0], told[1])
	}
}
