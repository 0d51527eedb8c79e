// Package history records the operations and observations of group clients under faults, and
// checks the promises of the group.
//
// It knows nothing about the workings of a group. Rules have the names of the reliability notes:
//
// H1  a register is linearizable: one order explains all writes, swaps and reads (porcupine)
// H2  an uncontended lock is linearizable, with tries, unlocks and lease ends
// H3  a register written under a lock accepts the last holder only
// R2  a read sees everything acknowledged before its call, at any peer
// L1  tokens of a lock strictly increase in real time
// L2  no write succeeds with a token older than a granted one
// L3  no two clients believe in conflicting locks at one moment
// L4  a lock is not lost while its client may rely on it
// L7  claims are granted in queue order
// D1  acknowledged operations are in the history, refused operations are not
// E1  no operation is applied twice
// W   all watches see the same events, in revision order, without gap or duplicate
// T1  no unit of an offer is sold twice, and tokens of grants rise
// P   a complete answer of the discovery plane has every offer in its last acknowledged version, and no withdrawn one
package history

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Kind is the kind of an operation.
type Kind string

// Kinds of operations.
const (
	Read    Kind = "read"    // of a key
	Put     Kind = "put"     // of a key
	Swap    Kind = "swap"    // of a key, unless it changed since the read
	Guarded Kind = "guarded" // put of a key, guarded by a fencing token
	Fenced  Kind = "fenced"  // write to an outside resource that checks tokens
	Lock    Kind = "lock"    // waiting
	Try     Kind = "trylock" // not waiting
	Unlock  Kind = "unlock"
	Abandon Kind = "abandon" // of a session, without renewals from now on
	Open    Kind = "session" // start of a session
	Close   Kind = "close"   // end of a session
)

// Outcome is the outcome of an operation from the view of its client.
type Outcome string

// Outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // by the operation itself: no effect
	Unknown Outcome = "unknown" // may have happened, or may happen later
)

// Mode is the mode of a lock.
type Mode string

// Modes.
const (
	Exclusive Mode = "exclusive"
	Shared    Mode = "shared"
	Permit    Mode = "permit"
)

// Op is one operation of one client.
type Op struct {
	ID       int64         `json:"id"` // above 0
	Client   int           `json:"client"`
	Kind     Kind          `json:"kind"`
	Object   string        `json:"object,omitempty"` // key, or name of a lock
	Mode     Mode          `json:"mode,omitempty"`   // of a lock
	Lock     string        `json:"lock,omitempty"`   // of Guarded and Fenced: under which
	Value    string        `json:"value,omitempty"`  // written, or read; nobody writes one twice
	Old      string        `json:"old,omitempty"`    // of Swap: the value it replaces
	Token    int64         `json:"token,omitempty"`
	Revision int64         `json:"revision,omitempty"` // of the answer
	Call     time.Duration `json:"call"`
	Return   time.Duration `json:"return"`
	Outcome  Outcome       `json:"outcome"`
	Error    string        `json:"error,omitempty"`
}

// metadata marks a claim, to find it among the events.
func (o Op) metadata() string { return strconv.FormatInt(o.ID, 10) }

// String formats the operation on one line.
func (o Op) String() string {
	return fmt.Sprintf("%12v..%-12v client %-3d %s %s value %q old %q token %d revision %d: %s %s",
		o.Call, o.Return, o.Client, o.Kind, o.Object, o.Value, o.Old, o.Token, o.Revision, o.Outcome, o.Error)
}

// Event is one change of one key, equal in all watches.
type Event struct {
	Revision int64         `json:"revision"`
	Key      string        `json:"key"`
	Value    string        `json:"value,omitempty"` // of a claim: the metadata
	Deleted  bool          `json:"deleted,omitempty"`
	Create   int64         `json:"create,omitempty"` // revision that made the key, of a deletion too
	Version  int64         `json:"version,omitempty"`
	Replaces int64         `json:"replaces,omitempty"` // revision of the version before
	Lock     string        `json:"lock,omitempty"`     // of a claim: its lock
	Mode     Mode          `json:"mode,omitempty"`     // of a claim
	Permits  int           `json:"permits,omitempty"`
	Lease    int64         `json:"lease,omitempty"`
	Seen     time.Duration `json:"seen"` // by the first of the watches
}

// History is the record of a run: operations in any order, and all events.
type History struct {
	Ops    []Op
	Events []Event
}

// Violation is a broken promise.
type Violation struct {
	Rule   string `json:"rule"`
	Detail string `json:"detail"`
}

// String is the violation for people.
func (v Violation) String() string { return v.Rule + ": " + v.Detail }

// Result is what one check came to.
type Result struct {
	Rule       string
	Checked    int // operations or events
	Took       time.Duration
	Violations []Violation
}

// perRule bounds the reported violations of one rule.
const perRule = 10

// Check applies every rule to a finished history. A porcupine check without an answer after
// patience counts as violated: an undecided check proves nothing.
func Check(h History, now func() time.Time, patience time.Duration) []Result {
	h.Ops, h.Events = slices.Clone(h.Ops), slices.Clone(h.Events)
	slices.SortFunc(h.Ops, func(a, b Op) int { return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.ID, b.ID)) })
	c := &checker{History: h, patience: patience}
	c.index()
	rules := []struct {
		name  string
		check func(*collector)
	}{
		{"H1", c.registers}, {"H2", c.tries}, {"H3", c.fenced}, {"R2", c.fresh}, {"L1", c.tokens}, {"L2", c.stale},
		{"L2", c.replay}, {"L7", c.order}, {"D1", c.durable}, {"E1", c.once},
	}
	results := make([]Result, 0, len(rules))
	for _, r := range rules {
		v := &collector{Result: Result{Rule: r.name}}
		began := now()
		r.check(v)
		v.Took = now().Sub(began)
		results = append(results, v.Result)
	}
	return results
}

// checker is a history with look-up tables.
type checker struct {
	History
	patience time.Duration

	written map[string]Event // by value
	made    map[string]Event // claims, by metadata
	ended   map[claim]Event  // deletions of claims
	claims  map[string][]Op  // acknowledged, by lock, ordered by call
	given   map[claim]Op     // Unlock of each claim
}

func (c *checker) index() {
	c.written, c.made, c.ended = make(map[string]Event), make(map[string]Event), make(map[claim]Event)
	c.claims, c.given = make(map[string][]Op), make(map[claim]Op)
	for _, e := range c.Events {
		switch {
		case e.Deleted && e.Lock != "":
			c.ended[claim{e.Lock, e.Create}] = e
		case e.Lock != "" && e.Version == 1:
			c.made[e.Value] = e
		case e.Lock == "" && !e.Deleted:
			c.written[e.Value] = e
		}
	}
	for _, o := range c.Ops {
		switch {
		case o.acquired():
			c.claims[o.Object] = append(c.claims[o.Object], o)
		case o.Kind == Unlock:
			c.given[claim{o.Object, o.Token}] = o
		}
	}
}

// acquired reports whether the client knows that the operation acquired a lock.
func (o Op) acquired() bool { return (o.Kind == Lock || o.Kind == Try) && o.Outcome == OK }

// claim is one holder of one lock.
type claim struct {
	lock  string
	token int64
}

// collector collects violations.
type collector struct{ Result }

func (v *collector) violated(format string, args ...any) {
	if len(v.Violations) < perRule {
		v.Violations = append(v.Violations, Violation{Rule: v.Rule, Detail: fmt.Sprintf(format, args...)})
	}
}
