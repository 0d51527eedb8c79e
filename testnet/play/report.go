package main

import (
	"math"
	"slices"
	"time"

	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/tour"
)

// report is the object of -json. This process measures all times except CachedQueryUs, which the
// peer reports.
type report struct {
	Peers              int          `json:"peers"`
	Records            int          `json:"records"`
	ReadySeconds       float64      `json:"ready_seconds"`         // from the first process's start until all peers knew all
	RegisterSeconds    float64      `json:"register_seconds"`      // of all services, all providers at once, a batch each
	PublishP95Ms       float64      `json:"publish_p95_ms"`        // of publishing one service: from an Update's call to its receipt
	FirstQueryMs       float64      `json:"first_query_ms"`        // of the tour's first question
	CachedQueryUs      float64      `json:"cached_query_us"`       // median of the answers' took
	UpdateVisibleP99Ms float64      `json:"update_visible_p99_ms"` // from before Update until a watch on another peer shows it
	FailoverMs         float64      `json:"failover_ms"`           // from the kill of the group's leader to the next lock acquired
	ResumedMs          float64      `json:"resumed_ms"`            // from the kill of its next leader to the next registration committed
	RSSMiB             spread       `json:"rss_mib"`               // of the peers, ready and empty
	RSSEndMiB          spread       `json:"rss_end_mib"`           // of the peers alive after the tour
	Idle               *reportUsage `json:"idle,omitempty"`        // of each peer, with -idle
	Steps              []reportStep `json:"steps"`

	print bool
}

type reportStep struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	TookMs float64 `json:"took_ms"`
	Detail string  `json:"detail"`
}

// reportUsage is what each peer uses.
type reportUsage struct {
	CPUPercent  spread                `json:"cpu_percent"`   // of one processor
	KBPerMinute spread                `json:"kb_per_minute"` // written to files and TCP connections
	RSSMiB      spread                `json:"rss_mib"`
	Protocols   map[string]reportFlow `json:"protocols,omitempty"` // on streams between peers
}

// reportFlow is the KB a minute of one protocol.
type reportFlow struct {
	Sent     spread `json:"sent"`
	Received spread `json:"received"`
}

// spread summarises one figure over all peers.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func newReport(o options) report {
	return report{Peers: o.peers, Records: o.records, Steps: []reportStep{}, print: o.json}
}

func (r *report) ready(took time.Duration, n *network.Network) {
	r.ReadySeconds = hundredths(took.Seconds())
	r.RSSMiB = spreadOf(n.Peers, func(p *network.Peer) uint64 { return p.Idle })
}

func (r *report) toured(t *tour.Tour, results []tour.Result) {
	r.FirstQueryMs = millis(t.FirstQuery)
	r.PublishP95Ms, r.UpdateVisibleP99Ms = millis(t.PublishP95), millis(t.UpdateP99)
	r.CachedQueryUs = hundredths(float64(t.CachedQuery) / float64(time.Microsecond))
	r.FailoverMs, r.ResumedMs = millis(t.Failover), millis(t.Resumed)
	for _, s := range results {
		r.Steps = append(r.Steps, reportStep{Name: s.Name, OK: s.OK, TookMs: millis(s.Took), Detail: s.Detail})
	}
}

func (r *report) end(n *network.Network) {
	r.RSSEndMiB = spreadOf(n.Living(), func(p *network.Peer) uint64 { return p.Resident() })
}

// usageOf compares what each peer had used before and after some time. Protocols without bytes are left out.
func usageOf(before, after []observation, took time.Duration) *reportUsage {
	u := &reportUsage{Protocols: map[string]reportFlow{}}
	perMinute := func(of func(observation) float64) spread {
		all := make([]float64, len(after))
		for i := range after {
			all[i] = (of(after[i]) - of(before[i])) / 1000 / took.Minutes()
		}
		return spreadAll(all)
	}
	var cpu, rss []float64
	for i := range after {
		cpu = append(cpu, 100*(after[i].CPU-before[i].CPU).Seconds()/took.Seconds())
		rss = append(rss, mib(after[i].resident))
	}
	u.CPUPercent, u.RSSMiB = spreadAll(cpu), spreadAll(rss)
	u.KBPerMinute = perMinute(func(o observation) float64 { return float64(o.Written) })
	for name := range after[0].traffic {
		f := reportFlow{
			Sent:     perMinute(func(o observation) float64 { return o.traffic[name].Sent }),
			Received: perMinute(func(o observation) float64 { return o.traffic[name].Received }),
		}
		if f != (reportFlow{}) {
			u.Protocols[name] = f
		}
	}
	return u
}

// write prints the report if -json was given.
func (r *report) write(s *session) error {
	if !r.print {
		return nil
	}
	return writeJSON(s.stdout, r)
}

func spreadOf(peers []*network.Peer, of func(*network.Peer) uint64) spread {
	var all []float64
	for _, p := range peers {
		all = append(all, mib(of(p)))
	}
	return spreadAll(all)
}

func spreadAll(all []float64) spread {
	if len(all) == 0 {
		return spread{}
	}
	slices.Sort(all)
	return spread{Min: hundredths(all[0]), Median: hundredths(all[(len(all)-1)/2]), Max: hundredths(all[len(all)-1])}
}

// mib converts bytes to MiB, rounded to a tenth.
func mib(bytes uint64) float64 { return math.Round(float64(bytes)/(1<<20)*10) / 10 }

// millis converts a duration to milliseconds, rounded to the microsecond.
func millis(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func hundredths(x float64) float64 { return math.Round(x*100) / 100 }
