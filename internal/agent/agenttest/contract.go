package agenttest

import (
	"context"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// API is an implementation of the agent plane's contract, in process or over gRPC, on an agent
// for one test.
type API struct {
	instances.Registrar
	Finder

	Pass   func(d time.Duration) // advances the time of the agent
	Lose   func(reason string)   // loses contact with the group; nil skips these tests
	Find   func()                // restores contact
	Forget func()                // drops the history; nil skips these tests
	// Wire is true over gRPC, which does not carry the whole contract.
	Wire bool
}

// Finder is the common part of all implementations of instance.Catalog.
type Finder interface {
	// Discover returns the instances of a service.
	Discover(ctx context.Context, q instance.Query) (instance.Result, error)
	// List returns the instances of all services of a namespace.
	List(ctx context.Context, q instances.ListQuery) (instance.Result, error)
	// Services returns the services of a namespace.
	Services(ctx context.Context, namespace string) (instance.Services, error)
	// Watch calls send for the changes of a result.
	Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error
}

// InProcess is an Agent without gRPC. Other implementations replace Registrar and Finder, and set
// Wire over gRPC.
func InProcess(a *Agent) API {
	return API{Registrar: a, Finder: a, Pass: a.Pass, Lose: a.Lose, Find: a.Find, Forget: a.Forget}
}

// Open returns an implementation on a new agent. It ends with the test.
type Open func(t testing.TB) API

// Run tests an implementation against the contract of package instance.
func Run(t *testing.T, open Open) {
	for name, test := range Tests() {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// Tests returns the tests of Run by name, for tests that need their own synctest bubble.
func Tests() map[string]func(t *testing.T, api API) {
	tests := make(map[string]func(*testing.T, API))
	for name, test := range map[string]func(w *fixture){
		"registering":        registering,
		"replacing":          replacing,
		"strict":             strict,
		"refusals":           refusals,
		"deregistering":      deregistering,
		"heartbeats":         heartbeats,
		"thresholds":         thresholds,
		"statuses":           statuses,
		"selectors":          selectors,
		"listing":            listing,
		"indexes":            indexes,
		"services":           services,
		"watching":           watching,
		"watching namespace": watchingNamespace,
		"watching on":        watchingOn,
		"forgotten past":     forgottenPast,
		"lost contact":       lostContact,
	} {
		tests[name] = func(t *testing.T, api API) { test(&fixture{API: api, T: t}) }
	}
	return tests
}
