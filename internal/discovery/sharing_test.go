package discovery_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/witness"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// meeting stands for the keepers at which measurements meet.
type meeting struct {
	mu   sync.Mutex
	told []witness.Statement
	own  bool // each measurer delivers its own statement, from another network
}

func (m *meeting) Findings(_ context.Context, _ *queries.Plan, providers []peer.ID, own []byte) (out []ask.Delivered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if st, err := witness.Open("test", own, time.Now()); len(own) > 0 && err == nil {
		m.told = append(m.told, st)
	}
	if len(providers) == 0 {
		return nil
	}
	for i, st := range m.told {
		d := ask.Delivered{Statement: st}
		if m.own {
			d.From = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i), 0}), 24)
		}
		out = append(out, d)
	}
	return out
}

// statement adds the finding of a new measurer.
func (m *meeting) statement(t *testing.T, about peer.ID, s records.Reachability) {
	data, err := witness.Sign("test", newKey(t), []witness.Finding{{Provider: about, State: s, CheckedAt: time.Now()}})
	require.NoError(t, err)
	m.Findings(t.Context(), nil, nil, data)
}

func sharing(m *meeting, key crypto.PrivKey) func(*engine.Settings) {
	return func(s *engine.Settings) { s.Sharing = &engine.Sharing{Network: "test", Key: key, Findings: m.Findings} }
}

// TestConsumersShareMeasurements: of ten consumers with one question, the first measures, and tells the others.
func TestConsumersShareMeasurements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, provider := &meeting{}, newKey(t)
		measured := 0
		for i := range 10 {
			f := newFixture(t, sharing(m, newKey(t)))
			f.other = provider
			r := f.foreign("a", 1, 1, 24*time.Hour)
			f.keep(r)
			f.prober.answers(records.Measured{State: records.Reachable, RoundTrip: time.Millisecond, CheckedAt: time.Now().Add(time.Second)})
			f.ask(storage())
			synctest.Wait()
			if f.prober.tracked[r.Name().Provider] {
				measured++
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if i > 0 {
				a := f.ask(cheapest(3))
				require.Equal(t, 1, a.Results[0].Measured.Peers, "the first consumer measured")
			}
			f.close()
		}
		require.Equal(t, 1, measured)
		require.Len(t, m.told, 1)
	})
}

// TestOthersHideNothing: however many say that a provider is unreachable, an own measurement decides.
func TestOthersHideNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &meeting{own: true}
		f := newFixture(t, sharing(m, newKey(t)))
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		provider := r.Name().Provider
		f.keep(r)
		for i := range 5 {
			require.Len(t, f.ask(cheapest(i+1)).Results, 1)
			synctest.Wait()
			m.statement(t, provider, records.Unreachable)
		}
		require.True(t, f.prober.tracked[provider], "this peer measures itself")
		require.Len(t, f.ask(cheapest(6)).Results, 1)
		synctest.Wait()
		a := f.ask(cheapest(7))
		require.Len(t, a.Results, 1)

		f.prober.set(provider, false)
		a = f.ask(cheapest(7))
		require.Empty(t, a.Results)
		require.Equal(t, "no answer at any of its addresses", a.Excluded[0].Reason)
		require.True(t, a.Complete)
	})
}
