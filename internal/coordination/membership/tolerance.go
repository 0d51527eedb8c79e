package membership

import "fmt"

// Tolerance counts the voters of a group, and those that answer its leader now. It is the only owner of the question
// how many failures the group survives. The zero value means that no leader has said.
type Tolerance struct{ Voters, Active int }

// ToleranceOf counts the voters among members, as their leader sees them.
func ToleranceOf(members []Progress) (t Tolerance) {
	for _, m := range members {
		if m.Voter {
			t.Voters++
			if m.Active {
				t.Active++
			}
		}
	}
	return t
}

// majority is the number of voters that a commit needs.
func (t Tolerance) majority() int { return t.Voters/2 + 1 }

// Failures returns the number of voters that may still fail without a loss of the majority.
func (t Tolerance) Failures() int { return max(t.Active-t.majority(), 0) }

// Quorate reports whether a majority answers.
func (t Tolerance) Quorate() bool { return t.Voters > 0 && t.Active >= t.majority() }

// String says it to an operator: "2 of 3 voters: no failure"; empty for the zero value.
func (t Tolerance) String() string {
	if t.Voters == 0 {
		return ""
	}
	noun, survived := "voters", "no failure"
	if t.Voters == 1 {
		noun = "voter"
	}
	switch n := t.Failures(); {
	case !t.Quorate():
		survived = "no majority"
	case n == 1:
		survived = "1 failure"
	case n > 1:
		survived = fmt.Sprintf("%d failures", n)
	}
	return fmt.Sprintf("%d of %d %s: %s", t.Active, t.Voters, noun, survived)
}
