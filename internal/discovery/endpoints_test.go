package discovery_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// speaking keeps an offer of a provider of its own with an endpoint.
func (f *fixture) speaking(id, endpoint string, sequence uint64) *records.Record {
	if sequence == 1 {
		f.other = newKey(f.t)
	}
	r := f.again(id, endpoint, sequence)
	f.keep(r)
	f.arrive(r)
	return r
}

// again signs a version of such an offer.
func (f *fixture) again(id, endpoint string, sequence uint64) *records.Record {
	o := offer(id, 1)
	o.Metadata.Endpoints = []string{endpoint}
	now := time.Now()
	r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: sequence, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(f.t, err)
	return r
}

func states(a *query.Answer) map[string]records.Reachability {
	found := make(map[string]records.Reachability)
	for _, r := range a.Results {
		found[r.Record.Name().ID] = r.Endpoint.State
	}
	return found
}

// An endpoint that dies leaves the answers within a minute and a confirmation, with the reason, and returns when it answers again. One
// failed check hides nothing. What cannot be measured stays, and says so.
func TestDeadEndpointsAreNotUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(s *engine.Settings) { s.Defaults.Claims = query.ClaimsCheck })
		defer f.close()
		f.speaks.set("lives.net", probe.Answers)
		f.speaks.set("dies.net", probe.Answers)
		f.speaking("lives", "https://lives.net", 1)
		f.speaking("odd", "carrier-pigeon://roof.net", 1)
		f.speaking("dies", "https://dies.net/x", 1)
		require.Equal(t, map[string]records.Reachability{"lives": records.Unmeasured, "dies": records.Unmeasured, "odd": records.Unmeasured}, states(f.ask(storage())))
		look := func(after time.Duration) *query.Answer {
			for range int(after / (5 * time.Second)) { // somebody keeps asking
				f.ask(storage())
				time.Sleep(5 * time.Second)
			}
			return f.ask(storage())
		}
		a := look(20 * time.Second)
		require.Equal(t, map[string]records.Reachability{"lives": records.Answers, "dies": records.Answers, "odd": records.Unmeasured}, states(a))
		require.Equal(t, "odd", a.Results[2].Record.Name().ID, "measured ones rank first")
		require.Equal(t, 20*time.Millisecond, a.Results[0].Endpoint.RoundTrip)

		f.speaks.set("dies.net", probe.Silent)
		a = look(75 * time.Second)
		require.Equal(t, map[string]records.Reachability{"lives": records.Answers, "odd": records.Unmeasured}, states(a))
		require.True(t, a.Complete, a.Reason)
		require.Equal(t, 2, a.Total)
		require.Len(t, a.Excluded, 1)
		require.Equal(t, "dies", a.Excluded[0].ID)
		require.Equal(t, "endpoint: silent, by a fake", a.Excluded[0].Reason)
		all := storage()
		all.Health = query.HealthAny
		require.Equal(t, records.Silent, states(f.ask(all))["dies"])

		f.speaks.set("dies.net", probe.Answers)
		require.Len(t, look(75*time.Second).Results, 3)
		require.LessOrEqual(t, f.speaks.count("lives.net"), 4, "once a minute")

		f.speaks.set("dies.net", probe.Refuses) // another version may have another endpoint
		look(75 * time.Second)
		require.Len(t, f.ask(storage()).Results, 2)
		before := f.speaks.count("lives.net")
		time.Sleep(time.Hour)
		require.LessOrEqual(t, f.speaks.count("lives.net"), before+6, "nobody asks any more")
	})
}

// A closed endpoint is alive: it stays in default answers, with the words of the endpoint apart from those of this
// program, and earns nothing for health and speed, whatever it claims. A price that the endpoint contradicts is said,
// and excludes nothing.
func TestClosedIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(s *engine.Settings) { s.Defaults.Claims = query.ClaimsCheck })
		defer f.close()
		perfect, fast, most := 100.0, uint64(1), 2.0
		for id, unit := range map[string]string{"dearer": "per-request", "hourly": "per-hour", "open": "per-request", "vague": "per-request"} {
			f.other = newKey(t)
			o := offer(id, 1)
			o.Pricing.PriceUnit = unit
			o.Metadata.Endpoints = []string{"https://" + id + ".net"}
			if id != "open" {
				o.Health = &records.Health{UptimePercent: &perfect, ResponseTimeMs: &fast}
			}
			now := time.Now()
			r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(24 * time.Hour)})
			require.NoError(t, err)
			f.keep(r)
			f.arrive(r)
		}
		f.speaks.set("dearer.net", probe.Closed)
		f.speaks.set("hourly.net", probe.Closed)
		f.speaks.set("open.net", probe.Answers)
		for range 60 {
			f.ask(storage())
			time.Sleep(5 * time.Second)
		}
		a := f.ask(storage())
		require.Equal(t, map[string]records.Reachability{"dearer": records.Closed, "hourly": records.Closed, "open": records.Answers, "vague": records.Unmeasured}, states(a))
		require.Empty(t, a.Excluded)
		require.Equal(t, "open", a.Results[0].Record.Name().ID)
		for _, r := range a.Results {
			switch r.Record.Name().ID {
			case "dearer":
				require.Equal(t, []string{"the price 1 USDC: its endpoint asks 5 for a request"}, r.Doubts)
				fallthrough
			case "hourly":
				require.Equal(t, "pay me", r.Endpoint.EndpointText)
				require.Equal(t, "by a fake", r.Endpoint.Detail)
				require.Zero(t, r.Score)
			case "vague":
				require.Equal(t, "answered 406", r.Endpoint.Detail, "why nobody can tell")
				fallthrough
			default:
				require.Empty(t, r.Doubts)
			}
		}
		priced := storage()
		priced.MaxPrice, priced.PriceUnit, priced.Explain = &most, "per-request", true
		for _, r := range f.ask(priced).Results {
			if r.Record.Name().ID == "dearer" {
				require.Zero(t, r.Score, "a contradicted price earns nothing")
				require.Contains(t, r.Explain[0], "closed")
				require.Contains(t, r.Explain[1], "asks 5")
			}
		}
	})
}

// A single failure, as of a lost packet, hides no living endpoint.
func TestOneFailureHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.speaks.set("a.net", probe.Silent)
		f.speaking("a", "https://a.net", 1)
		f.ask(storage())
		time.Sleep(5 * time.Second)
		f.speaks.set("a.net", probe.Answers)
		for range 60 {
			require.Len(t, f.ask(storage()).Results, 1)
			time.Sleep(time.Second)
		}
	})
}

// A new version with another endpoint is measured anew.
func TestNewEndpointIsMeasuredAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.speaks.set("old.net", probe.Refuses)
		f.speaks.set("new.net", probe.Answers)
		f.speaking("a", "https://old.net", 1)
		f.ask(storage())
		time.Sleep(30 * time.Second)
		require.Empty(t, f.ask(storage()).Results)
		f.speaking("a", "https://new.net", 2)
		time.Sleep(time.Second)
		require.Equal(t, records.Unmeasured, states(f.ask(storage()))["a"])
		time.Sleep(10 * time.Second)
		f.ask(storage())
		time.Sleep(10 * time.Second)
		require.Equal(t, records.Answers, states(f.ask(storage()))["a"])
	})
}

// Dead offers do not take the places of living ones that keepers withhold.
func TestDeadOffersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.limited.Store(true)
		for i := range 30 {
			host := fmt.Sprintf("h%d.net", i)
			f.speaks.set(host, map[bool]probe.State{true: probe.Answers, false: probe.NoSuchName}[i >= 15])
			f.speaking(fmt.Sprintf("o%02d", i), "https://"+host, 1)
		}
		q := cheapest(10)
		for range 40 {
			f.ask(q)
			time.Sleep(5 * time.Second)
		}
		a := f.ask(q)
		require.Len(t, a.Results, 10)
		for _, r := range a.Results {
			require.Equal(t, records.Answers, r.Endpoint.State)
		}
	})
}
