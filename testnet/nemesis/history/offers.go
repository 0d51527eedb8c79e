package history

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Offers knows every change of some offers and judges answers about them: rule P. Only one change of an offer
// may be in flight. Methods are safe for concurrent use.
//
// The rule has the window that the reliability notes name: a change that some keepers did not take, running or not, may be
// missing until the keepers have compared. They cannot while its provider is cut off: the larger part of a partitioned network
// answers for itself.
type Offers struct {
	window time.Duration

	mu     sync.Mutex // guards what follows
	of     map[string][]change
	cuts   map[string][]cut // by the first part of the names of offers
	counts Answers
	broken []Violation
}

// Answers counts the answers of a run.
type Answers struct {
	Complete   int `json:"complete"`
	Incomplete int `json:"incomplete"`
	Failed     int `json:"failed"` // questions without an answer
	Late       int `json:"late"`   // complete answers without a change that not all keepers had taken, within the window
}

// change gives an offer a version; 0 means none. Without an acknowledgement it may have happened, or may happen
// until the next one.
type change struct {
	version      int
	began, acked time.Duration
	done, full   bool // full: every keeper took it
}

// cut is a time without contact; end is 0 before it.
type cut struct{ began, end time.Duration }

// NewOffers returns an empty list. The window begins with the acknowledgement of a change.
func NewOffers(window time.Duration) *Offers {
	return &Offers{window: window, of: make(map[string][]change), cuts: make(map[string][]cut)}
}

// Cut notes that a provider loses contact. Names of its offers begin with prefix.
func (o *Offers) Cut(prefix string, now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if all := o.cuts[prefix]; len(all) == 0 || all[len(all)-1].end > 0 {
		o.cuts[prefix] = append(all, cut{began: now})
	}
}

// Heal notes that all providers have contact.
func (o *Offers) Heal(now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.cuts {
		if last := &all[len(all)-1]; last.end == 0 {
			last.end = now
		}
	}
}

// reached is the time from which the window of a change of an offer runs.
func (o *Offers) reached(offer string, c change) time.Duration {
	for prefix, all := range o.cuts {
		for _, one := range all {
			switch {
			case !strings.HasPrefix(offer, prefix) || one.began > c.acked+o.window:
			case one.end == 0:
				return math.MaxInt64 / 2
			case one.end > c.acked:
				c.acked = one.end
			}
		}
	}
	return c.acked
}

// Knows reports whether there was a change of an offer.
func (o *Offers) Knows(offer string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[offer] != nil
}

// Begin notes a change before its call. It returns the version: the next one, or 0 for a withdrawal.
func (o *Offers) Begin(offer string, withdraw bool, now time.Duration) (version int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.of[offer]
	if all == nil {
		all = []change{{done: true, full: true}}
	}
	if !withdraw {
		for _, c := range all {
			version = max(version, c.version)
		}
		version++
	}
	o.of[offer] = append(all, change{version: version, began: now})
	return version
}

// Acknowledge notes the answer to the last change; full means that every keeper took it.
func (o *Offers) Acknowledge(offer string, full bool, now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &o.of[offer][len(o.of[offer])-1]
	c.acked, c.done, c.full = now, true, full
}

// Answer is an answer to a question for all offers.
type Answer struct {
	From            string
	Asked, Answered time.Duration
	Complete        bool
	Found           map[string]int // versions, by offer
	Note            string         // for people
}

// Judge counts an answer and checks it if it says that it is complete.
func (o *Offers) Judge(a Answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !a.Complete {
		o.counts.Incomplete++
		return
	}
	o.counts.Complete++
	wrong, late := o.contrast(a)
	if late != "" {
		o.counts.Late++
	}
	if wrong != "" {
		o.broken = append(o.broken, Violation{Rule: "P", Detail: fmt.Sprintf("%s said complete at %v: %s; %s", a.From, a.Answered, wrong, a.Note)})
	}
}

// Fail counts a question without an answer.
func (o *Offers) Fail() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts.Failed++
}

// Differs describes the first difference between an answer and the acknowledged changes, without any window,
// or returns "".
func (o *Offers) Differs(a Answer) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	wrong, late := o.contrast(a)
	return wrong + late
}

// contrast describes the first wrong offer of an answer, and otherwise the first late one.
func (o *Offers) contrast(a Answer) (wrong, late string) {
	for _, offer := range slices.Sorted(maps.Keys(a.Found)) {
		if o.of[offer] == nil {
			return "it has " + offer + ", which nobody registered", ""
		}
	}
	for _, offer := range slices.Sorted(maps.Keys(o.of)) {
		all, got := o.of[offer], a.Found[offer]
		right := possible(all, a, func(c change) time.Duration { return c.acked })
		text := fmt.Sprintf("it has version %d of %s, expected %v (0 is none); ", got, offer, right)
		switch {
		case slices.Contains(right, got):
		case slices.Contains(possible(all, a, func(c change) time.Duration { return o.reached(offer, c) + o.window }), got):
			late = text
		default:
			return text, ""
		}
	}
	return "", late
}

// possible lists the versions that a correct answer may have: the last one that was acknowledged before the
// question, and all that began later. A change that some keepers did not take is everywhere at a later time.
func possible(all []change, a Answer, everywhere func(change) time.Duration) (versions []int) {
	first := 0
	for i, c := range all {
		known := c.acked
		if !c.full {
			known = everywhere(c)
		}
		if c.done && (i == 0 || known < a.Asked) {
			first = i
		}
	}
	for _, c := range all[first:] {
		if c.began <= a.Answered {
			versions = append(versions, c.version)
		}
	}
	return versions
}

// Counts returns the counted answers.
func (o *Offers) Counts() Answers {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts
}

// Result returns the checked answers and the wrong ones.
func (o *Offers) Result() Result {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Result{Rule: "P", Checked: o.counts.Complete, Violations: o.broken[:min(len(o.broken), perRule)]}
}
