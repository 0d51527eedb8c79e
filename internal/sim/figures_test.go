package sim

import (
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"time"
)

// Params are what a scenario is played with.
type Params struct {
	Scenario string        `json:"scenario"`
	Peers    int           `json:"peers"`
	Records  int           `json:"records"`
	Seed     uint64        `json:"seed"`
	RTT      time.Duration `json:"rtt"`
	Loss     float64       `json:"loss"`
	Verbose  bool          `json:"verbose"`
	Enemies  int           `json:"enemies"` // of sybil; 0: three for ten honest peers
	// Connections of each peer, see p2p.Config; 0 is the profile's. They are what a
	// simulation costs: a dozen goroutines each.
	Connections int `json:"connections"`
}

// Figures are what a scenario measured. Times are milliseconds of virtual time, except Wall.
type Figures struct {
	Params
	Machine
	Traffic
	Answers
	Publish Spread
	First   Spread // of each peer, nothing cached
	Warm    Spread
	Visible Spread // at a watcher, from the start of the update
	Flooded int    // most records of flooders that one honest peer holds
	Stages  []Stage
	Counts  map[string]int64
	Broken  map[string]int // properties, and how often
	Excused map[string]int // breaches that are told, and not demanded
	Told    []string       // the first breaches
}

// Machine is what the run cost.
type Machine struct {
	VirtualSeconds float64
	WallSeconds    float64
	MemoryMiB      float64 // taken from the system
	Goroutines     int
}

// Traffic is what the wire carried.
type Traffic struct {
	Packets int64
	Lost    int64
	MiB     float64
}

// Answers counts queries.
type Answers struct {
	Queries    int
	Complete   int
	Incomplete int
	Failed     int     // no answer
	Forming    float64 // from the last join until every peer was part of the network; 0: at once
	Unseen     int     // updates that a watcher never saw
	Overstated int     // said to be complete in unquiet times, and lacked records
}

// Stage is the part of the records that queries found at one point of the story.
type Stage struct {
	Name     string
	Quiet    bool    // nothing changed shortly before
	At       float64 // since the beginning, virtual
	Queries  int
	Complete int
	Exact    int
	Recall   float64 // share of the matching records that was found; 1 if no record matches
	Took     Spread
	// Reasons of the incomplete answers, without cells and numbers, and how often.
	Reasons map[string]int
}

// Spread sums up a sample.
type Spread struct {
	N   int
	P50 float64
	P95 float64
	P99 float64
	Max float64
}

func spreadOf(sample []time.Duration) Spread {
	if len(sample) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(sample))
	at := func(q float64) float64 { return millis(s[min(int(q*float64(len(s))), len(s)-1)]) }
	return Spread{N: len(s), P50: at(0.50), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// report completes the figures of a run that began at began.
func (w *cluster) report() Figures {
	f := w.figures
	f.Params = w.params
	f.VirtualSeconds = time.Since(w.began).Seconds()
	f.Packets, f.Lost, f.MiB = w.wire.packets.Load(), w.wire.lost.Load(), float64(w.wire.bytes.Load())/(1<<20)
	f.Publish, f.First, f.Warm, f.Visible = spreadOf(w.published), spreadOf(w.first), spreadOf(w.warm), spreadOf(w.visible)
	f.Counts = make(map[string]int64)
	for _, p := range w.peers {
		for what, n := range p.counts.seen(w.t) {
			f.Counts[what] += n
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.MemoryMiB, f.Goroutines = float64(m.Sys)/(1<<20), runtime.NumGoroutine()
	f.Broken, f.Excused, f.Told = w.oracle.broken, w.oracle.excused, w.oracle.first
	return f
}

func (g Stage) String() string {
	s := fmt.Sprintf("%4.0f s  %-24s %4d queries, %d complete, %d exact, recall %.4f, p95 %.0f ms",
		g.At, g.Name, g.Queries, g.Complete, g.Exact, g.Recall, g.Took.P95)
	for _, why := range slices.Sorted(maps.Keys(g.Reasons)) {
		s += fmt.Sprintf("; %d incomplete: %s", g.Reasons[why], why)
	}
	return s
}

// reasonOf returns the reason of an incomplete answer without the parts that differ from answer to answer.
func reasonOf(reason string) string {
	details := regexp.MustCompile(`/blackhole/\S+( and \d+ more cells)?|[0-9.]+(ms|s|m)?`)
	return details.ReplaceAllString(reason, "…")
}

// told is a line for a reader who waits.
func (f Figures) told() string {
	s := fmt.Sprintf("%s: %d peers, %d records, %.0f s virtual, %.0f s real; first query p95 %.0f ms, publish p95 %.0f ms, visible p99 %.0f ms; %d queries, %d complete, %d failed",
		f.Scenario, f.Peers, f.Records, f.VirtualSeconds, f.WallSeconds, f.First.P95, f.Publish.P95, f.Visible.P99, f.Queries, f.Complete, f.Failed)
	s += fmt.Sprintf("\n  publish %+v\n  first %+v\n  later %+v\n  visible %+v, unseen %d\n  %.0f MiB sent in %d packets, formed after %.0f s", f.Publish, f.First, f.Warm, f.Visible, f.Unseen, f.MiB, f.Packets, f.Forming)
	for _, g := range f.Stages {
		s += "\n  " + g.String()
	}
	if f.Flooded > 0 {
		s += fmt.Sprintf("\n  flooded %d", f.Flooded)
	}
	for _, what := range slices.Sorted(maps.Keys(f.Counts)) {
		s += fmt.Sprintf("\n  %-48s %d", what, f.Counts[what])
	}
	return s
}
