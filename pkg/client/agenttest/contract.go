package agenttest

import (
	"context"
	"testing"
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// API is a form of the agent plane's contract, in process or over a wire, over an agent that
// nobody else uses.
type API struct {
	instance.Registrar
	Finder

	Pass   func(d time.Duration) // lets so much time pass for the agent
	Lose   func(reason string)   // loses contact with the cluster; nil: not tested
	Find   func()                // finds it again
	Forget func()                // forgets what watches could go on from; nil: not tested
	// Wire is whether there is one: not all of the contract crosses it.
	Wire bool
}

// Finder is what every form of instance.Catalog has.
type Finder interface {
	// Discover gives the instances of a service.
	Discover(ctx context.Context, q instance.Query) (instance.Result, error)
	// List gives instances of all services of a namespace.
	List(ctx context.Context, q instance.ListQuery) (instance.Result, error)
	// Services names those of a namespace.
	Services(ctx context.Context, namespace string) (instance.Services, error)
	// Watch gives send the changes of a result.
	Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error
}

// InProcess is an Agent as it is. For another form of it replace Registrar and Finder, and say so in Wire.
func InProcess(a *Agent) API {
	return API{Registrar: a, Finder: a, Pass: a.Pass, Lose: a.Lose, Find: a.Find, Forget: a.Forget}
}

// Open gives a form of the contract over a fresh agent; what it opens ends with the test.
type Open func(t testing.TB) API

// Run holds a form of the contract to what package instance promises.
func Run(t *testing.T, open Open) {
	for name, test := range Tests() {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// Tests are what Run runs, by name, for those that must be opened in a bubble of their own.
func Tests() map[string]func(t *testing.T, api API) {
	tests := make(map[string]func(*testing.T, API))
	for name, test := range map[string]func(w *world){
		"registering":    registering,
		"replacing":      replacing,
		"strict":         strict,
		"refusals":       refusals,
		"deregistering":  deregistering,
		"heartbeats":     heartbeats,
		"thresholds":     thresholds,
		"statuses":       statuses,
		"selectors":      selectors,
		"listing":        listing,
		"indexes":        indexes,
		"services":       services,
		"watching":       watching,
		"watching on":    watchingOn,
		"forgotten past": forgottenPast,
		"lost contact":   lostContact,
	} {
		tests[name] = func(t *testing.T, api API) { test(&world{API: api, T: t}) }
	}
	return tests
}
