package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// node returns a command of Node in wire-js. It skips the test without Node.
func node(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no Node: wire-js does not run")
	}
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir = "wire-js"
	return cmd
}

// TestWireVectors lets another language verify the test vectors: it has only docs/wire.md.
func TestWireVectors(t *testing.T) {
	t.Parallel()
	folder, err := filepath.Abs("../pkg/records/testdata")
	require.NoError(t, err)
	out, err := node(t, "verify.mjs", filepath.Join(folder, "vectors.json"), filepath.Join(folder, "refused.json")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^[1-9][0-9]* vectors verified, [1-9][0-9]* of refusals\n$`, string(out))
}

// TestWirePeer runs a peer in JavaScript beside a real blackholed, both ways: each finds the record of the other at the
// keeper, and receives the next one by gossip.
func TestWirePeer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	if _, err := os.Stat("wire-js/node_modules/libp2p"); err != nil {
		t.Skip("no packages: run npm ci in examples/wire-js")
	}
	cmd := node(t)
	c, err := operator.New(peer(t, t.TempDir()))
	require.NoError(t, err)
	defer c.Close()
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	register := func(id string) {
		_, err := c.Offers().Register(t.Context(), records.Offer{ID: id, Metadata: records.Metadata{Type: "storage"},
			Capabilities: &records.Capabilities{Storage: &records.Storage{TotalSpace: 1e12}}})
		require.NoError(t, err)
	}
	register("go-disk")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := c.Offers().Watch(ctx, query.Query{Type: "storage"}, "") // the peer follows the topic
	require.NoError(t, err)

	other := start(t, cmd.Path, "wire-js/peer.mjs", "dev", status.Listen[0])
	other.says(t, "published")
	require.Contains(t, other.output(), "stored sequence ")
	require.Contains(t, other.output(), "found go-disk of "+status.PeerID)
	require.Contains(t, other.output(), "found js-disk of this peer")
	for heard := ""; heard != "Second version"; { // it came by gossip alone
		event, err := watch.Next()
		require.NoError(t, err)
		if event.Record != nil && event.Record.ID == "js-disk" {
			heard = event.Record.Metadata.Name
		}
	}
	register("go-late")
	other.says(t, "heard go-late")
	other.interrupt(t)
}

// TestWireSellers has js-libp2p, which knows nothing of this program, find sellers by its own DHT: by the CID of a cell.
func TestWireSellers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	if _, err := os.Stat("wire-js/node_modules/@libp2p/kad-dht"); err != nil {
		t.Skip("no packages: run npm ci in examples/wire-js")
	}
	node(t) // or skip
	c, err := operator.New(peer(t, t.TempDir()))
	require.NoError(t, err)
	defer c.Close()
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	lat, lon := 52.52, 13.4
	_, err = c.Offers().Register(t.Context(), records.Offer{ID: "disk", Metadata: records.Metadata{Type: "storage"},
		Capabilities: &records.Capabilities{Storage: &records.Storage{TotalSpace: 1e12}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon}})
	require.NoError(t, err)
	for cell, want := range map[string]string{
		"/blackhole/services/storage/_/u33":    status.PeerID + " sells in /blackhole/services/storage/_/u33\nfound 1\n",
		"/blackhole/services/storage/_/global": status.PeerID + " sells in /blackhole/services/storage/_/global\nfound 1\n",
		"/blackhole/services/storage/_/9q8":    "found 0\n",
	} {
		out, err := node(t, "sellers.mjs", "dev", status.Listen[0], cell).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want, string(out))
	}
}
