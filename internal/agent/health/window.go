package health

import (
	"math"
	"math/bits"
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	windowSpan = time.Hour
	windowMin  = 12 // slots
)

// window keeps the checks of the last hour in a ring of one byte for each
// moment of the schedule. A moment without a check leaves a gap and does not
// stretch the hour. Size: 360 bytes at an interval of 10 s, 3,600 at 1 s.
//
// A byte is 0 without a check. Otherwise its low seven bits are 1 for a
// failure, or 2 plus the class of the response time; the high bit marks an up
// target.
type window struct {
	codes []byte
	head  int64 // slot of the newest check; undefined before the first
	any   bool
	last  time.Time // end of the newest check
}

const (
	codeFailed = 1
	codePassed = 2
	codeUp     = 0x80
)

func newWindow(interval time.Duration) *window {
	n := max(windowMin, (windowSpan+interval-1)/interval)
	return &window{codes: make([]byte, n)}
}

// add notes the outcome of the check in a slot and the status after it. Slots
// ascend.
func (w *window) add(slot int64, o outcome, status instance.Status) {
	code := byte(codeFailed)
	if o.err == nil {
		code = codePassed + class(o.took)
	}
	if status == instance.StatusUp {
		code |= codeUp
	}
	w.forward(slot)
	w.codes[w.at(slot)] = code
	w.last = o.at
}

// forward moves the head to a slot and clears the slots between.
func (w *window) forward(slot int64) {
	n := int64(len(w.codes))
	if !w.any {
		w.head, w.any = slot, true
	}
	for s := max(w.head+1, slot-n+1); s <= slot; s++ {
		w.codes[w.at(s)] = 0
	}
	w.head = max(w.head, slot)
}

func (w *window) at(slot int64) int64 {
	n := int64(len(w.codes))
	return ((slot % n) + n) % n
}

// measure summarises the window that ends with slot now.
func (w *window) measure(now int64) Measured {
	m := Measured{Last: w.last}
	var up int
	var classes [128]int
	n := int64(len(w.codes))
	for s := max(now-n+1, w.head-n+1); w.any && s <= w.head; s++ {
		code := w.codes[w.at(s)]
		if code == 0 {
			continue
		}
		m.Checks++
		if code&codeUp != 0 {
			up++
		}
		if c := code &^ codeUp; c == codeFailed {
			m.Failed++
		} else {
			classes[c-codePassed]++
		}
	}
	if m.Checks == 0 {
		return m
	}
	m.UptimePercent = 100 * float64(up) / float64(m.Checks)
	m.ErrorRate = uint32(10_000 * m.Failed / m.Checks)
	m.P50 = percentile(&classes, m.Checks-m.Failed, 0.50)
	m.P95 = percentile(&classes, m.Checks-m.Failed, 0.95)
	return m
}

// percentile returns the nearest rank: the class of the smallest time with at
// least the share q of all n times up to it.
func percentile(classes *[128]int, n int, q float64) time.Duration {
	rank := int(math.Ceil(q * float64(n)))
	for c, count := range classes {
		if rank -= count; rank <= 0 && count > 0 {
			return middle(byte(c))
		}
	}
	return 0
}

// unit is the time resolution.
const unit = 8 * time.Microsecond

// class maps a time to one of 112 classes, four per doubling: above 32 us the
// middle of a class is within an eighth of its times.
func class(d time.Duration) byte {
	u := uint64(min(max(d, 0), windowSpan) / unit)
	if u < 4 {
		return byte(u)
	}
	shift := bits.Len64(u) - 3
	return byte(4*shift) + byte(u>>shift)
}

// middle returns the representative time of a class.
func middle(c byte) time.Duration {
	if c < 4 {
		return time.Duration(c)*unit + unit/2
	}
	shift := c/4 - 1
	low := time.Duration(c-4*shift) << shift
	return low*unit + (unit<<shift)/2
}
