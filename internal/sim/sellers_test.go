package sim

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2pprotocol "github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	wantedSellers = 20   // of a cell: what a client of the DHT asks for
	soughtCells   = 1000 // at most
)

// TestSellers has a program that knows libp2p and its DHT alone look for sellers.
func TestSellers(t *testing.T) {
	play(t, Params{Scenario: "sellers", Peers: 24, Records: 40, Seed: 1, RTT: 50 * time.Millisecond})
}

// playSellers withdraws a fifth of the offers, and looks for the sellers of cells by the standard call of kad-dht. At least 95 % of
// the sellers are found, up to 20 of a cell, and none who sells nothing there.
func playSellers(w *cluster) {
	w.grow()
	all := w.owned(w.peers)
	w.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	sellers, gone := make(map[records.CellKey]map[peer.ID]bool), len(all)/5
	for i, s := range all {
		for _, c := range s.record.Cells() {
			if c.OfProvider() {
				continue
			}
			if sellers[c] == nil {
				sellers[c] = make(map[peer.ID]bool)
			}
			if i >= gone {
				sellers[c][s.owner.id] = true
			}
		}
		if i < gone {
			w.withdraw(s.owner, s.record.Name().ID)
		}
	}
	time.Sleep(quieting)

	client := w.client()
	stage := Stage{Name: "sellers for a plain client", Quiet: true, At: time.Since(w.began).Seconds(), Reasons: make(map[string]int)}
	var took []time.Duration
	wanted, found := 0, 0
	for c, want := range sellers {
		if stage.Queries == soughtCells {
			break
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		got := 0
		for i := range client.FindProvidersAsync(ctx, c.CID(), wantedSellers) {
			got++
			if !want[i.ID] {
				w.fail("%s sells nothing in %s", short(i.ID), c)
			}
		}
		cancel()
		took = append(took, time.Since(start))
		stage.Queries++
		stage.Complete++
		wanted, found = wanted+min(wantedSellers, len(want)), found+got
	}
	stage.Recall, stage.Took = float64(found)/float64(max(wanted, 1)), spreadOf(took)
	w.figures.Stages = append(w.figures.Stages, stage)
	if wanted == 0 || stage.Recall < 0.95 {
		w.fail("a plain client found %d of %d sellers", found, wanted)
	}
}

// client starts a client of the DHT that is no peer of this program.
func (w *cluster) client() *dht.IpfsDHT {
	at := address(len(w.peers) + 1)
	opts := append([]libp2p.Option{libp2p.Identity(keyOf(w.params.Seed, rand.Uint64())), libp2p.ListenAddrs(listenOn(at)), libp2p.DisableMetrics()}, w.wire.transport(at)...)
	h, err := libp2p.New(opts...)
	require.NoError(w.t, err)
	d, err := dht.New(h, dht.ProtocolPrefix(libp2pprotocol.ID(network.Name(networkName).Prefix())), dht.Mode(dht.ModeClient),
		dht.Validator(record.NamespacedValidator{}))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		require.NoError(w.t, d.Close())
		require.NoError(w.t, h.Close())
	})
	for _, p := range w.doors() {
		require.NoError(w.t, h.Connect(w.t.Context(), p))
	}
	for d.RoutingTable().Size() < len(w.doors()) {
		time.Sleep(time.Second)
	}
	<-d.RefreshRoutingTable()
	return d
}
