package cell

import (
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/pkg/records"
)

// The constants of Wait.
const (
	// MaxWait is the longest that a newcomer waits: the lifetime of an advertisement, E, in discv5.
	MaxWait = 15 * time.Minute

	nearFull   = 0.8  // of the capacity: from here on newcomers wait
	steepness  = 3    // P
	groundRate = 1e-7 // G: what even an unlike newcomer waits
	minWait    = time.Second
)

// Load is what a newcomer finds in a cell that is whole.
type Load struct {
	Count      int  // records
	Capacity   int  // records, at least 1
	OfProvider int  // the newcomer's
	OfPrefix   int  // the newcomer's
	Splits     bool // the cell gives way to honest growth by dividing
}

// Wait is how long a newcomer is kept out of a cell that is more than 80 % full, so that
// whoever would fill it needs more time than records live, and more the more it has there
// already. It is the waiting time of DISC-NG (M. Król et al., "DISC-NG: Robust Service
// Discovery in the Ethereum Global Network", 2023; devp2p, discv5 theory, "Topic-based
// Service Discovery"),
//
//	w = E (1 - c/C)^-P (c(s)/c + score(IP) + G)
//
// with the share of the provider for that of the service, and of the address prefix for the
// score. C is the capacity and c the count. It is at most MaxWait, and 0 below a second. In a
// cell that divides only what is above the shares of provider and prefix counts: there
// everybody else is welcome, since the cell gives way.
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

// NearFull reports whether newcomers may have to wait.
func NearFull(count, capacity int) bool { return float64(count) > nearFull*float64(capacity) }

// AdmissionQueue remembers since when newcomers wait, so that they need no ticket: a bounded number
// of them, of which whoever did not ask for the longest time loses its place. It is not
// safe for concurrent use.
type AdmissionQueue struct {
	since *simplelru.LRU[records.Name, time.Time]
}

// maxQueue bounds a AdmissionQueue.
const maxQueue = 8192

// NewAdmissionQueue makes an empty line.
func NewAdmissionQueue() *AdmissionQueue {
	since, err := simplelru.NewLRU[records.Name, time.Time](maxQueue, nil)
	if err != nil {
		panic("cell: " + err.Error()) // impossible: the size is a positive constant
	}
	return &AdmissionQueue{since: since}
}

// Admit lets a newcomer in that has waited, or is not to wait, and otherwise gives the time
// left. The wait is that of the moment: it may have changed since the newcomer came. Who does
// not come back within MaxWait after its time has waited in vain.
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
