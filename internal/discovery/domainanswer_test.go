package discovery_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// of keeps an offer of a provider of its own that claims a domain.
func (f *fixture) of(id, domain string) {
	f.other = newKey(f.t)
	o := offer(id, 1)
	o.Metadata.Domain = domain
	now := time.Now()
	r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(f.t, err)
	f.keep(r)
	f.arrive(r)
}

// An answer says which domains are checked, and which are claims. A filter asks for checked ones, and says that it does not know yet.
func TestAnswerSaysWhichDomainsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.of("none", "")
		f.of("true", "shop.nowhere.net")
		f.of("false", "bank.nowhere.net")
		f.of("odd", "shop.example.com") // of nobody
		f.speaks.set("shop.nowhere.net", probe.Answers)
		f.speaks.set("bank.nowhere.net", probe.Refuses)
		domains := func(a *query.Answer) map[string]string {
			found := make(map[string]string)
			for _, r := range a.Results {
				if found[r.Record.Name().ID] = "-"; r.Domain != nil {
					found[r.Record.Name().ID] = string(r.Domain.State) + r.Domain.Detail
				}
			}
			return found
		}
		checked := storage()
		checked.Domain = queries.AnyDomain
		a := f.ask(checked) // the checks begin after it
		require.Empty(t, a.Results)
		require.False(t, a.Complete)
		require.Contains(t, a.Reason, "not checked yet")

		time.Sleep(10 * time.Second)
		require.Equal(t, map[string]string{"none": "-", "true": "checked" + "by a fake", "false": "claimed" + "refuses, by a fake", "odd": "claimed"}, domains(f.ask(storage())))
		a = f.ask(checked)
		require.Equal(t, map[string]string{"true": "checkedby a fake"}, domains(a))
		require.Len(t, a.Excluded, 2, "those that claim one")
		one := storage()
		one.Domain = "bank.nowhere.net"
		a = f.ask(one)
		require.Empty(t, a.Results)
		require.True(t, a.Complete, a.Reason)
		require.Len(t, a.Excluded, 1)
		require.Equal(t, "domain: claimed; refuses, by a fake", a.Excluded[0].Reason)
		one.Domain = "shop.nowhere.net"
		require.Len(t, f.ask(one).Results, 1)

		f.speaks.set("bank.nowhere.net", probe.Answers)
		one.Domain = "bank.nowhere.net"
		for range 18 * 60 { // somebody keeps asking
			f.ask(one)
			time.Sleep(time.Second)
		}
		require.Len(t, f.ask(one).Results, 1)

		_, err := f.Watch(t.Context(), checked, "")
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "domain", fault.FieldOf(err))
	})
}
