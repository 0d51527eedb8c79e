package discovery_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		receipt, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		require.Equal(t, records.Stored{On: 3, Of: 3}, receipt.Stored)
		require.Equal(t, time.Now().Add(24*time.Hour).UTC(), receipt.ExpiresAt.UTC())
		own, err := f.Own("a")
		require.NoError(t, err)
		require.Equal(t, receipt.Key, own.Key().String())
		require.Len(t, f.ask(storage()).Results, 1)

		_, err = f.Register(t.Context(), offer("a", 1))
		require.ErrorIs(t, err, discovery.ErrServiceExists)
		_, err = f.Own("b")
		require.ErrorIs(t, err, discovery.ErrNoServicesFound)
	})
}

// TestFullIndex: the operator learns of a full index, and of its end.
func TestFullIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOn(t, index.New(index.Config{MaxBytes: 4 << 10}))
		defer f.close()
		for _, id := range []string{"a", "b", "c", "d"} {
			_, _ = f.index.Put(f.foreign(id, 1, 1, 10*time.Minute), time.Now())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{string(condition.IndexFull)}, f.limits.ActiveNames())
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		require.Empty(t, f.limits.ActiveNames())
	})
}

// TestSentinels causes an error for each template of offers.
func TestSentinels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		for want, spoil := range map[error]func(*records.Offer){
			discovery.ErrMissingMetadata:     func(o *records.Offer) { o.Metadata.Type = "" },
			discovery.ErrInvalidCapabilities: func(o *records.Offer) { o.Capabilities = nil },
			discovery.ErrInvalidLocation:     func(o *records.Offer) { o.Location.Latitude = ptr(91.0) },
			discovery.ErrInvalidPricing:      func(o *records.Offer) { o.Pricing.BasePrice = ptr(-1.0) },
			discovery.ErrInvalidService:      func(o *records.Offer) { o.ID = "a/b" },
		} {
			o := offer("a", 1)
			spoil(&o)
			_, err := f.Register(t.Context(), o)
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, err, discovery.ErrInvalidService)
			require.NotErrorIs(t, err, discovery.ErrInvalidQuery)
		}
		require.Empty(t, f.OwnAll(), "nothing has changed")
	})
}

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		bad := offer("bad", 1)
		bad.Metadata.Type = "UPPER"
		offers := []records.Offer{offer("a", 1), bad, offer("a", 2)}
		for _, id := range []string{"b", "c", "d", "e", "f", "g", "h", "i", "j", "k"} {
			offers = append(offers, offer(id, 1))
		}
		out, err := f.RegisterBatch(t.Context(), offers)
		require.NoError(t, err)
		require.NoError(t, out[0].Err)
		require.ErrorIs(t, out[1].Err, discovery.ErrMissingMetadata)
		require.ErrorIs(t, out[2].Err, discovery.ErrServiceExists)
		require.NoError(t, out[11].Err)
		require.ErrorIs(t, out[12].Err, discovery.ErrProviderLimitReached, "the eleventh service")
		require.Len(t, f.OwnAll(), 10)

		_, err = f.RegisterBatch(t.Context(), nil)
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "records", fault.FieldOf(err))
	})
}

// TestRetry: a service without a keeper is registered, and announced until a keeper stores it.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.down.Store(true)
		receipt, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		require.Equal(t, records.Stored{On: 0, Of: 3}, receipt.Stored)
		time.Sleep(time.Minute)
		require.Empty(t, f.net.stored("a"))
		f.net.down.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Len(t, f.net.stored("a"), 1)
		require.Equal(t, receipt.Sequence, f.net.stored("a")[0].Sequence())
	})
}

// TestUnstored: a service that no keeper holds degrades the health of its peer until a keeper holds it, or until
// it is withdrawn.
func TestUnstored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		register := func(id string) {
			_, err := f.Register(t.Context(), offer(id, 1))
			require.NoError(t, err)
		}
		register("a")
		require.Empty(t, f.limits.Active())
		f.net.down.Store(true)
		register("c")
		register("b")
		require.Equal(t, []string{"b", "c"}, f.registry.Unstored())
		require.Equal(t, 2, f.registry.Announcing())
		require.Equal(t, []string{"not_stored"}, f.limits.ActiveNames())
		require.Contains(t, f.limits.Active()[0].String(), "2 of this peer's services, among them b, c: network is down")

		_, err := f.Withdraw(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, []string{"c"}, f.registry.Unstored())
		f.net.down.Store(false)
		time.Sleep(10 * time.Minute)
		require.Empty(t, f.registry.Unstored())
		require.Zero(t, f.registry.Announcing())
		require.Empty(t, f.limits.Active())
	})
}

// TestRefresh: for three days a service is announced before it lapses, with new sequences and the same
// created_at. Queries always find it.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		_, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		for range 72 {
			time.Sleep(time.Hour)
			require.Len(t, f.ask(storage()).Results, 1)
		}
		versions := f.net.stored("a")
		require.GreaterOrEqual(t, len(versions), 11)
		for i, r := range versions[1:] {
			require.Greater(t, r.Sequence(), versions[i].Sequence())
			require.Equal(t, versions[0].Service().CreatedAt.AsTime(), r.Service().CreatedAt.AsTime())
			require.LessOrEqual(t, r.Issued().Sub(versions[i].Issued()), 7*time.Hour)
		}
	})
}

func TestUpdateAndWithdraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		first, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		created := f.OwnAll()[0].Service().CreatedAt.AsTime()
		time.Sleep(time.Hour)
		second, err := f.Update(t.Context(), offer("a", 2))
		require.NoError(t, err)
		require.Greater(t, second.Sequence, first.Sequence)
		require.Equal(t, created, f.OwnAll()[0].Service().CreatedAt.AsTime())
		require.Equal(t, 2.0, f.ask(storage()).Results[0].Record.Facts().Price)

		_, err = f.Withdraw(t.Context(), "a")
		require.NoError(t, err)
		require.Empty(t, f.ask(storage()).Results)
		require.True(t, f.net.stored("a")[2].Withdrawn())
		_, err = f.Withdraw(t.Context(), "a")
		require.ErrorIs(t, err, fault.NotFound)
		_, err = f.Update(t.Context(), offer("a", 2))
		require.ErrorIs(t, err, fault.NotFound)
	})
}

// TestFrequentChanges: each price of a provider goes to the keepers at once, and none again later.
func TestFrequentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		_, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		before := len(f.net.stored("a"))
		for i := range 4 {
			made, err := f.Update(t.Context(), offer("a", float64(2+i)))
			require.NoError(t, err)
			stored := f.net.stored("a")
			require.Len(t, stored, before+i+1)
			require.Equal(t, made.Sequence, stored[before+i].Sequence())
			require.Zero(t, f.registry.Announcing())
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		require.Len(t, f.net.stored("a"), before+4)
	})
}

// TestOvertaken: a service that moves leaves a tombstone for its old cells. Keepers of both places refuse the
// tombstone, because they have the newer version. That counts as stored: the tombstone is not announced again
// until the next refresh.
func TestOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		_, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		moved := offer("a", 1)
		moved.Location.Latitude, moved.Location.Longitude = ptr(-33.9), ptr(151.2)
		_, err = f.Update(t.Context(), moved)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		tombstones := 0
		for _, r := range f.net.stored("a") {
			if r.Withdrawn() {
				tombstones++
			}
		}
		require.Equal(t, 1, tombstones)
	})
}

func TestNewServiceRefusesMissingParts(t *testing.T) {
	_, err := engine.NewService(engine.Parts{}, engine.Settings{})
	require.True(t, errors.Is(err, fault.Invalid))
}

// A provider hears which of its changes followers may ignore.
func TestReceiptNamesIgnoredUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		receipt, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		require.Empty(t, receipt.Warnings)
		f.live.hasty.Store(true)
		receipt, err = f.Update(t.Context(), offer("a", 2))
		require.NoError(t, err)
		require.Equal(t, 3, receipt.Stored.On)
		require.Equal(t, []string{"other peers may ignore it"}, receipt.Warnings)
	})
}

// A provider hears that checks leave out a part of its endpoint, until its host consents.
func TestReceiptNamesPartialChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.speaks.set("api.shop.net", probe.Refuses)
		o := offer("a", 1)
		o.Metadata.Endpoints = []string{"https://api.shop.net/pool"}
		receipt, err := f.Register(t.Context(), o)
		require.NoError(t, err)
		require.Len(t, receipt.Warnings, 1)
		require.Contains(t, receipt.Warnings[0], "without its path until its host names this peer")
		f.speaks.set("api.shop.net", probe.Answers)
		time.Sleep(10 * time.Minute)
		_, err = f.Update(t.Context(), o)
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		receipt, err = f.Update(t.Context(), o)
		require.NoError(t, err)
		require.Empty(t, receipt.Warnings)
	})
}

// TestOffersOfInstances: callers cannot change what the next check of an instance would announce again. The agent can.
func TestOffersOfInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(s *engine.Settings) { s.Instances = true })
		defer f.close()
		o := offer("a", 1)
		o.Metadata.Attributes = map[string]string{records.InstanceAttribute: "default/sell-gpu/one/two"}
		require.NoError(t, f.Announce(t.Context(), "", o))
		_, err := f.Withdraw(t.Context(), "a")
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Conflict, Field: "id"})
		require.ErrorContains(t, err, "deregister instance one/two of service sell-gpu")
		_, err = f.Update(t.Context(), offer("a", 2))
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Conflict, Field: "id"})
		require.Equal(t, 1.0, f.ask(storage()).Results[0].Record.Facts().Price)
		require.NoError(t, f.Retract(t.Context(), "a"))
		require.ErrorIs(t, f.Retract(t.Context(), "a"), fault.NotFound)
		o = offer("b", 1)
		o.Metadata.Attributes = map[string]string{records.InstanceAttribute: "no key of an instance"}
		_, err = f.Register(t.Context(), o)
		require.NoError(t, err)
		_, err = f.Withdraw(t.Context(), "b")
		require.NoError(t, err)
	})
	synctest.Test(t, func(t *testing.T) { // without the agent nobody else withdraws what it announced
		f := newFixture(t)
		defer f.close()
		o := offer("a", 1)
		o.Metadata.Attributes = map[string]string{records.InstanceAttribute: "default/sell-gpu/one"}
		require.NoError(t, f.Announce(t.Context(), "", o))
		_, err := f.Withdraw(t.Context(), "a")
		require.NoError(t, err)
	})
}
