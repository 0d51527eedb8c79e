package fault

import (
	"errors"
	"time"
)

// State says where a problem stands. The words of a problem follow it: nothing that has happened is told as a warning.
type State string

// The states of a problem.
const (
	Coming State = "coming" // nothing fails yet
	Now    State = "now"
	Over   State = "over"
)

// Problem is one thing that is wrong with a peer or its machine, in the same words wherever it is told: an error of the
// start, a condition, a finding of doctor, the page. Its texts name peers by their names.
type Problem struct {
	What   string    `json:"what"`             // what is so; of a damaged file its path
	Effect string    `json:"effect,omitempty"` // what fails because of it
	Remedy string    `json:"remedy,omitempty"` // what to do: a command, if one helps
	State  State     `json:"state"`
	Since  time.Time `json:"since,omitzero"`
}

// String returns the problem as one text: "what: effect. remedy".
func (p Problem) String() string {
	text := p.What
	if p.Effect != "" {
		text += ": " + p.Effect
	}
	if p.Remedy != "" {
		text += ". " + p.Remedy
	}
	return text
}

// Finding returns the problem without its remedy.
func (p Problem) Finding() string { p.Remedy = ""; return p.String() }

// Err returns the problem as an error of a kind. The cause may be nil; it adds no text.
func (p Problem) Err(kind Kind, cause error) error { return &Error{Kind: kind, Err: &told{p, cause}} }

// told is a problem as an error. It ends the search for a fault, whose text would be that of the cause.
type told struct {
	Problem
	cause error
}

func (t *told) Error() string { return t.String() }

func (t *told) Is(target error) bool { return errors.Is(t.cause, target) }

func (t *told) As(target any) bool {
	switch target := target.(type) {
	case **told:
		*target = t
		return true
	case **Error:
		return false
	}
	return errors.As(t.cause, target)
}

// ProblemOf returns the problem that an error tells. The text of any other error is what is wrong.
func ProblemOf(err error) Problem {
	var t *told
	if errors.As(err, &t) {
		return t.Problem
	}
	return Problem{What: Message(err)}
}
