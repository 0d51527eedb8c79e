package ui

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/crypto"
	libp2p "github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/sim/loopback"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// long skips what takes a browser a minute.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("TEST_LONG") == "" {
		t.Skip("a browser plays it for a minute: set TEST_LONG=1, as .ci/night does")
	}
}

// TestNetwork shows the page of a network of eight peers that keep 800 offers of 8 providers, or PAGE_OFFERS. It logs
// the figures of the page.
func TestNetwork(t *testing.T) {
	long(t)
	t.Parallel()
	b := openBrowser(t)
	offers := 800
	if text := os.Getenv("PAGE_OFFERS"); text != "" {
		var err error
		offers, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	first := startPeer(t)
	b.ready(first)
	lead := first.status(t).Listen[0]
	peers := []*peer{first}
	for range 7 {
		peers = append(peers, runPeer(t, first.program, "--grpc", "off", "--bootstrap", lead))
	}
	for _, p := range peers {
		require.Eventually(t, func() bool { s, ok := p.look(t); return ok && s.Ready && s.Peers >= 7 }, waitForPeer, pollEvery)
	}
	provide(t, peers, offers)
	for _, p := range peers { // each is a keeper of everything, so that its page shows all
		require.Eventually(t, func() bool { return p.status(t).RecordsKept >= offers }, waitForPeer, pollEvery)
	}

	all := fmt.Sprint(offers, " offers")
	b.do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": fmt.Sprintf("globalThis.wanted = %q;", all) + watchFirstView})
	for _, p := range []*peer{first, peers[7]} {
		b.visit(p.url("?fresh#/map"))
		b.until("seen.all !== undefined")
		b.text(all)
		keys := b.eval(steer).([]any)
		t.Logf("ms: first view %.0f, %s on the map %.0f, key to frame %.0f, slowest %.0f", b.eval("seen.first"), all, b.eval("seen.all"), keys[0], keys[1])
	}
	b.shoot("network-map")
	b.visit(first.url("#/map"))
	b.text(all)
	peers[3].json("POST /v1/discovery/records", `{"id": "late", "metadata": {"type": "cdn", "name": "late", "version": "1.0.0", "endpoints": ["https://p.example:443"]},
		"capabilities": {"cdn": {"bandwidth_mbps": 10}}, "location": {"latitude": 1, "longitude": 2}}`)
	b.text(fmt.Sprint(offers+1, " offers"))

	const question = "/v1/discovery/query?types=compute,storage,bandwidth,cdn&limit=1000"
	t.Logf("bytes: 1000 results %d", first.size(t, question))
	began, state := time.Now(), first.offersState(t)
	t.Logf("state of the watch: %d bytes, read in %.0f ms", state, float64(time.Since(began).Microseconds())/1000)
	counts := "/v1/discovery/query?types=compute,storage,bandwidth,cdn&cells=2"
	t.Logf("bytes: counts of all offers by cell %d", first.size(t, counts))
	b.visit(first.url("#/search?type=compute&near=Berlin&radius_km=3000&max_price=9&currency=USD"))
	b.text("complete")
	b.until("document.querySelectorAll('td button').length > 5")
	b.press("td button", "offer ")
	b.text("What peers measured earns points")
	b.shoot("network-search")
	b.visit(first.url("#/peers"))
	b.until("document.querySelectorAll('tbody tr').length >= 7")
	b.clean()
}

// status is what the peer says about itself.
func (p *peer) status(t *testing.T) discovery.Status {
	t.Helper()
	s, ok := p.look(t)
	require.True(t, ok)
	return s
}

// size returns the length of an answer that is not compressed.
func (p *peer) size(t *testing.T, path string) int {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}).Get("http://" + p.http + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return len(body)
}

// offersState returns the length of the first state of a watch of all offers.
func (p *peer) offersState(t *testing.T) (size int) {
	t.Helper()
	resp, err := http.Get("http://" + p.http + "/v1/discovery/watch?types=compute,storage,bandwidth,cdn")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && lines.Text() != "event: progress" {
		size += len(lines.Bytes()) + 1
	}
	require.NoError(t, lines.Err())
	return size
}

// look is status, false while the peer starts.
func (p *peer) look(t *testing.T) (s discovery.Status, ok bool) {
	t.Helper()
	resp, err := http.Get("http://" + p.http + "/v1/status")
	if err != nil {
		return s, false
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s) == nil
}

// provide stores offers of many providers at a network. Each provider is connected with all peers, so they find it alive. Keepers take 100 offers of one provider.
func provide(t *testing.T, peers []*peer, n int) {
	var all []libp2p.AddrInfo
	for _, p := range peers {
		at, err := libp2p.AddrInfoFromString(p.status(t).Listen[0])
		require.NoError(t, err)
		all = append(all, *at)
	}
	listen, err := multiaddr.NewMultiaddr("/ip4/127.0.0.1/tcp/0")
	require.NoError(t, err)
	node, err := p2p.New(t.Context(), p2p.Config{
		Identity: newKey(t), Datastore: dssync.MutexWrap(ds.NewMapDatastore()), Listen: []multiaddr.Multiaddr{listen}, Bootstrap: all[:1],
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, node.Close()) }()
	name := network.Default("dev")
	verifier, err := records.NewVerifier(name, 1024)
	require.NoError(t, err)
	k, err := keeper.New(protocol.Config{Network: name, Host: node.Host(), Router: node.Routing(), Index: index.New(index.Config{}), Verifier: verifier, Limits: protocol.Limits{Loopback: true}})
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	require.Eventually(t, func() bool { return node.Routing().Size() >= 8 }, waitForPeer, pollEvery)

	random := mrand.New(mrand.NewPCG(1, 2))
	const ofOne = 100 // offers of one provider
	for from := 0; from < n; from += ofOne {
		key := newKey(t)
		loopback.Answering(t, key, all) // so its offers stay
		var batch []*records.Record
		for i := from; i < min(n, from+ofOne); i++ {
			now := time.Now()
			r, err := records.Sign(name, key, someOffer(random, i), records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
			require.NoError(t, err)
			batch = append(batch, r)
		}
		for _, out := range k.Store(t.Context(), batch) {
			require.NoError(t, out.Err)
		}
	}
}

func newKey(t *testing.T) crypto.PrivKey {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	return key
}

// someOffer is one of four kinds at a random place of the inhabited world.
func someOffer(random *mrand.Rand, n int) records.Offer {
	lat, lon, price := random.Float64()*110-45, random.Float64()*340-170, random.Float64()
	o := records.Offer{
		ID: fmt.Sprint("o", n), Metadata: records.Metadata{Name: fmt.Sprint("offer ", n), Version: "1.0.0", Endpoints: []string{"other://p.example:443"}}, // of a kind that nobody measures
		Location: &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE", City: "Berlin"},
		Pricing:  &records.Pricing{Currency: "USD", BasePrice: &price, PriceUnit: "per-hour"}, Capabilities: &records.Capabilities{},
	}
	switch n % 4 {
	case 0:
		o.Metadata.Type, o.Capabilities.Compute = "compute", &records.Compute{CPUCores: 8, MemoryMB: 16_000}
	case 1:
		o.Metadata.Type, o.Capabilities.Storage = "storage", &records.Storage{TotalSpace: 1e12, AvailableSpace: 1e12}
	case 2:
		o.Metadata.Type, o.Capabilities.Bandwidth = "bandwidth", &records.Bandwidth{UploadMbps: 100, DownloadMbps: 100}
	default:
		o.Metadata.Type, o.Capabilities.CDN = "cdn", &records.CDN{BandwidthMbps: 1000}
	}
	return o
}
