package cell

import (
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

// Constants of Wait.
const (
	// MaxWait is the maximum waiting time: the lifetime E of an advertisement in discv5.
	MaxWait = 15 * time.Minute

	nearFull   = 0.8  // share of the capacity; new records wait above
	steepness  = 3    // P
	groundRate = 1e-7 // G: even a record of a new provider waits
	minWait    = time.Second
)

// Load is the state of a whole cell for a new record.
type Load struct {
	Count      int
	Capacity   int  // at least 1
	OfProvider int  // records of the same provider
	OfPrefix   int  // records of the same prefix
	Splits     bool // honest growth splits the cell
}

// Wait returns the waiting time of a new record for a cell above 80 % of its capacity. To fill the
// cell, an attacker needs more time than records live, and more with each record. It is the waiting
// time of DISC-NG (M. Król et al., "DISC-NG: Robust Service Discovery in the Ethereum Global
// Network", 2023; devp2p, discv5 theory, "Topic-based Service Discovery"),
//
//	w = E (1 - c/C)^-P (c(s)/c + score(IP) + G)
//
// with the share of the provider instead of the service, and the share of the address prefix as the
// score. C is the capacity and c the count. The result is at most MaxWait; below a second it is 0.
// In a cell that can split, only records above the shares of provider and prefix count: all other
// providers are welcome, because the cell splits.
func Wait(c Load) time.Duration {
	if !NearFull(c.Count, c.Capacity) {
		return 0
	}
	provider, prefix := c.OfProvider, c.OfPrefix
	ground := groundRate
	if c.Splits {
		provider, prefix, ground = max(0, provider-ProviderShare), max(0, prefix-PrefixShare), 0
	}
	free := math.Max(1-float64(c.Count)/float64(c.Capacity), 1/float64(c.Capacity+1))
	alike := float64(provider+prefix)/float64(c.Count) + ground
	w := float64(MaxWait) * math.Pow(free, -steepness) * alike
	switch {
	case !(w >= float64(minWait)):
		return 0
	case w > float64(MaxWait):
		return MaxWait
	default:
		return time.Duration(w)
	}
}

// NearFull reports whether new records may have to wait.
func NearFull(count, capacity int) bool { return float64(count) > nearFull*float64(capacity) }

// AdmissionQueue remembers the arrival of waiting records, so that they need no ticket. It is
// bounded: the least recently seen record loses its place. It is not safe for concurrent use.
type AdmissionQueue struct {
	since *simplelru.LRU[records.Name, time.Time]
}

// maxQueue bounds an AdmissionQueue.
const maxQueue = 8192

// NewAdmissionQueue returns an empty queue.
func NewAdmissionQueue() *AdmissionQueue {
	since := bounded.Map[records.Name, time.Time](maxQueue, nil)
	return &AdmissionQueue{since: since}
}

// Admit admits a record that need not wait, or has waited; otherwise it returns the time left.
// Wait is the present waiting time, which may differ from earlier calls. A record that returns
// later than MaxWait after its time has to wait again.
func (l *AdmissionQueue) Admit(n records.Name, wait time.Duration, now time.Time) (left time.Duration) {
	if wait <= 0 {
		l.since.Remove(n)
		return 0
	}
	since, ok := l.since.Get(n)
	waited := now.Sub(since)
	switch {
	case !ok, waited > wait+MaxWait:
		l.since.Add(n, now)
		return wait
	case waited < wait:
		return wait - waited
	default:
		l.since.Remove(n)
		return 0
	}
}
