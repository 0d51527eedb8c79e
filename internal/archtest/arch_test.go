package archtest

import (
	"os"
	"slices"
	"testing"
)

// A rule is a checker with the reason for which it exists.
type rule struct {
	name  string
	why   string
	check func(*module) []finding
}

// warns reports that a finding is a question to the author, not a fault: no code is cut to a number.
func (r rule) warns() bool { return r.name == "width" }

func rules() []rule {
	return []rule{
		{"floor", "a package imports only lower floors, so that each can be understood without those above", checkFloors},
		{"fence", "a library stays where it is wrapped, so that it can be replaced and the rest stays small", checkFences},
		{"plane", "planes make different promises and meet only in contracts; none may lean on the engine of another", checkPlanes},
		{"sdk", "an importer of pkg/client gets a client, not a peer", checkSDK},

		{"owner", "a part that knows its owner reaches every sibling; it takes the two or three functions that it needs", perPackage(checkOwner)},
		{"config", "who keeps the configuration of another package reaches all that it was given", perPackage(checkConfig)},
		{"home", "a small package with one user is a detail of that one, and a name more to learn for all others", checkHome},
		{"width", "a package is taken in as a whole: is it one thing?", perPackage(checkWidth)},

		{"state", "two daemons live in one process, and nothing happens because of an import: state belongs to a value with an owner", perPackage(checkState)},
		{"injected", "clock, randomness, system and logger are arguments, so that tests and replicas agree", perPackage(checkInjected)},
		{"text", "text of strangers cut in the middle of a character, or cleaned by other rules, breaks decoders and drives terminals", perPackage(checkText)},
		{"dial", "one dialer judges addresses and bounds connections; a second one would reach inside, or flood", perPackage(checkDial)},
		{"sleep", "a sleeping test is slow on a fast machine and wrong on a slow one; use testing/synctest", perPackage(checkSleep)},
	}
}

func perPackage(check func(*pkg) []finding) func(*module) []finding {
	return func(m *module) []finding {
		var all []finding
		for _, p := range m.packages {
			all = append(all, check(p)...)
		}
		return all
	}
}

func TestHouse(t *testing.T) {
	m, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.packages) < 3 {
		t.Fatalf("found only %d packages: the walk is broken", len(m.packages))
	}
	needed := make(map[exception]bool)
	for _, r := range rules() {
		for _, f := range r.check(m) {
			i := slices.IndexFunc(exceptions(), func(e exception) bool { return e.permits(r.name, f) })
			if i >= 0 {
				needed[exceptions()[i]] = true
				continue
			}
			say := t.Errorf
			if r.warns() {
				say = t.Logf
			}
			say("%s:%d: %s: %s (%s)", f.file, f.line, r.name, f.what, r.why)
		}
	}
	for _, e := range exceptions() {
		if e.reason == "" {
			t.Errorf("exception %s %s %s gives no reason", e.rule, e.where, e.subject)
		}
		if !needed[e] {
			t.Errorf("exception %s %s %s is no longer needed: remove it", e.rule, e.where, e.subject)
		}
	}
}
