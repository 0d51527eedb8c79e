// Package verdict is how the requirements of a cluster stand, as the director at the group's leader
// wrote it down: one key for each requirement, under Prefix and its name. So every peer can tell, who
// waits is woken wherever he waits, and a change of leader loses nothing.
package verdict

import (
	"encoding/json"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/director"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Prefix of the keys. Anybody may write there, but the director puts right what is not its own.
const Prefix = "verdicts/"

// State of a requirement.
type State string

// The states.
const (
	Satisfied    State = "satisfied"
	Insufficient State = "insufficient_nodes"
	Pending      State = "pending" // not judged yet; never in a key
)

// Verdict is how a requirement stands.
type Verdict struct {
	State     State `json:"state"`
	Needed    int   `json:"needed"`
	Available int   `json:"available"`
	// Revision since which the requirement is in this State, as far as the director saw it.
	Revision coord.Revision `json:"revision"`
	// Of is the mod revision of the requirement that was judged: one that was changed since is Pending.
	Of coord.Revision `json:"of"`
	// Problem says why nothing can be counted, such as a version range that this director cannot read;
	// mostly empty. The State is Insufficient then.
	Problem string `json:"problem,omitempty"`
}

// From is the verdict on a requirement that was last changed at a revision.
func From(s director.Status, of coord.Revision) Verdict {
	v := Verdict{State: Insufficient, Needed: s.Min, Available: s.Available, Revision: s.Since, Of: of}
	switch {
	case s.Problem != nil:
		v.Problem = fault.Message(s.Problem)
	case s.Satisfied():
		v.State = Satisfied
	}
	return v
}

// Same reports whether two verdicts differ in nothing but the revision since which they are so.
func (v Verdict) Same(other Verdict) bool {
	other.Revision = v.Revision
	return v == other
}

// Key is the key of the verdict on a requirement.
func Key(name string) string { return Prefix + name }

// Name takes a key apart; false if it is no verdict's.
func Name(key string) (string, bool) { return strings.CutPrefix(key, Prefix) }

// Encode is the verdict as the value of its key: JSON, for people who look at the keys.
func (v Verdict) Encode() []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("verdict: " + err.Error()) // impossible: it is of numbers and texts
	}
	return b
}

// Decode reads the value of a key. Errors: Invalid.
func Decode(b []byte) (Verdict, error) {
	var v Verdict
	if err := json.Unmarshal(b, &v); err != nil {
		return Verdict{}, fault.As("verdict.Decode", fault.Invalid, err)
	}
	if v.State != Satisfied && v.State != Insufficient {
		return Verdict{}, fault.Wrap("verdict.Decode", fault.Invalidf("state", string(v.State), "is no state"))
	}
	return v, nil
}
