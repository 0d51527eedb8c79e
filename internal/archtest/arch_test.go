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

func rules() []rule {
	return []rule{
		{"floor", "a package imports only lower floors, so that each can be understood without those above", checkFloors},
		{"fence", "a library stays where it is wrapped, so that it can be replaced and the rest stays small", checkFences},
		{"plane", "planes make different promises and meet only in contracts; none may lean on the engine of another", checkPlanes},
		{"sdk", "an importer of pkg/client gets a client, not a peer", checkSDK},
		{"name", "a package is named after what it provides", checkNames},

		{"file-size", "a file is read in one sitting", perPackage(checkFileSize)},
		{"function-size", "a function fits on a screen or two", perPackage(checkFunctionSize)},
		{"struct-size", "a struct with many fields has many owners; split it by owner", checkStructSize},
		{"interface-size", "the larger the interface, the harder to fake; declare what the consumer needs", checkInterfaceSize},
		{"methods", "a type with many methods has many jobs; split it by responsibility", perPackage(checkMethods)},
		{"parameters", "a long parameter list is a configuration that wants a struct", perPackage(checkParameters)},

		{"init", "nothing happens because a package was imported", perPackage(checkInit)},
		{"variable", "two daemons must live in one process: state belongs to a value with an owner", perPackage(checkVariables)},
		{"logger", "a logger is injected, so that each line says which component of which peer wrote it", perPackage(checkLoggers)},
		{"clock", "time is an argument or an injected func() time.Time, so that tests and replicas agree", perPackage(checkClock)},
		{"random", "randomness is injected, so that a failure can be replayed", perPackage(checkRandom)},
		{"pure", "equal arguments give equal results on every peer: no clock, no goroutine, no system", perPackage(checkPure)},
		{"sleep", "a sleeping test is slow on a fast machine and wrong on a slow one; use testing/synctest", perPackage(checkSleep)},

		{"package-comment", "a reader of go doc learns first what a package is for", perPackage(checkPackageComment)},
		{"doc", "what is exported is a contract, and a contract is written down", perPackage(checkDoc)},
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
			t.Errorf("%s:%d: %s: %s (%s)", f.file, f.line, r.name, f.what, r.why)
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
