package examples_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
)

// patience bounds every wait. A passing test does not depend on it.
const patience = 2 * time.Minute

func TestOffers(t *testing.T) {
	files, err := filepath.Glob("offers/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		offers, err := records.ParseOffersYAML(text)
		require.NoError(t, err, file)
		require.NotEmpty(t, offers, file)
		for _, o := range offers {
			require.NoError(t, o.Validate(), "%s: %s", file, o.ID)
		}
	}
}

// program is a running example.
type program struct {
	*exec.Cmd
	mu      sync.Mutex // guards printed
	printed bytes.Buffer
}

// Write stores the program's output.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.Write(b)
}

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.String()
}

func start(t *testing.T, binary string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	p := &program{Cmd: exec.CommandContext(ctx, binary, args...)}
	p.Stdout, p.Stderr = p, p
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		cancel()
		_ = p.Wait() // an error if the test has waited already
	})
	return p
}

// says waits for words in the output of a program.
func (p *program) says(t *testing.T, words string) {
	t.Helper()
	require.NoError(t, await.Until(t.Context(), patience, words, func(context.Context) error {
		if !strings.Contains(p.output(), words) {
			return fault.New("examples.says", fault.Unavailable, "the program printed: %s", p.output())
		}
		return nil
	}))
}

// interrupt ends a program like Ctrl-C, and expects exit code 0.
func (p *program) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Process.Signal(os.Interrupt))
	require.NoError(t, p.Wait(), "%s", p.output())
}

// peer runs a real blackholed and returns its gRPC address.
func peer(t *testing.T, dir string) string {
	t.Helper()
	return daemon(t, dir).GRPC
}

// daemon runs a peer.
func daemon(t *testing.T, dir string, bootstrap ...string) *process.Process {
	t.Helper()
	binary, err := process.Build(t.Context(), dir)
	require.NoError(t, err)
	p, err := process.Start(process.Spec{Name: "peer", Binary: binary, Data: filepath.Join(dir, "data"), Check: 2 * time.Second, Bootstrap: bootstrap})
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	c, err := operator.New(p.GRPC)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, await.Until(t.Context(), patience, "the peer is ready", func(ctx context.Context) error {
		if !p.Running() {
			return await.Never(p.Failure())
		}
		_, err := c.Status(ctx)
		return err
	}))
	return p
}

// pair starts a peer that sells and one that buys, and returns their addresses of HTTP.
func pair(t *testing.T) (seller, buyer string) {
	t.Helper()
	one := daemon(t, t.TempDir())
	c, err := operator.New(one.GRPC)
	require.NoError(t, err)
	defer c.Close()
	s, err := c.Status(t.Context())
	require.NoError(t, err)
	return "http://" + one.HTTP, "http://" + daemon(t, t.TempDir(), s.Listen[0]).HTTP
}

// TestPrograms runs provider and consumer on one real peer.
func TestPrograms(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	dir := t.TempDir()
	for _, pkg := range []string{"./provider", "./consumer"} {
		_, err := process.Program(t.Context(), dir, pkg)
		require.NoError(t, err)
	}
	grpc := peer(t, dir)
	consume := func() string {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "consumer"), "-grpc", grpc).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}

	require.Contains(t, consume(), "Found 0 storage services")
	watcher := start(t, filepath.Join(dir, "consumer"), "-grpc", grpc, "-watch")
	provider := start(t, filepath.Join(dir, "provider"), "-grpc", grpc)
	provider.says(t, "Ctrl-C withdraws it")
	require.Contains(t, provider.output(), "Stored on 1 of 1 peers")
	watcher.says(t, "added     fast-ssd-storage")

	found := consume()
	for _, line := range []string{
		"Found 1 storage services", "Fast SSD Storage (ID: fast-ssd-storage)", "Available: 4.50 TB",
		"Price: 0.050 USDC per-gb-month", "Selected service: fast-ssd-storage",
		"Would connect to https://storage.example.com/api/v1 by s3 or ipfs",
	} {
		require.Contains(t, found, line)
	}

	again := start(t, filepath.Join(dir, "provider"), "-grpc", grpc)
	again.says(t, "Ctrl-C withdraws it")
	watcher.says(t, "updated   fast-ssd-storage")
	again.interrupt(t)
	require.Contains(t, again.output(), "is withdrawn")
	watcher.says(t, "withdrawn fast-ssd-storage")
	watcher.interrupt(t)
	require.Contains(t, consume(), "Found 0 storage services")
}

// TestEmbed runs the program with a libp2p host of its own beside a daemon: each finds what the other one offers.
func TestEmbed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	dir := t.TempDir()
	program, err := process.Program(t.Context(), dir, "./embed")
	require.NoError(t, err)
	c, err := operator.New(peer(t, dir))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Offers().Register(t.Context(), records.Offer{ID: "of-a-daemon", Metadata: records.Metadata{Type: "compute", Name: "A daemon's"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 4, MemoryMB: 8000}}})
	require.NoError(t, err)
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	embedded := start(t, program, "-connect", status.Listen[0], "-network", status.Network, "-data", filepath.Join(dir, "embedded"))
	embedded.says(t, "Ctrl-C ends it")
	require.Contains(t, embedded.output(), "Found of-a-daemon of "+status.PeerID)
	found := func() bool {
		a, err := c.Offers().Query(t.Context(), query.Query{Type: "compute"})
		require.NoError(t, err)
		return slices.ContainsFunc(a.Results, func(r query.ResultView) bool { return r.Record.ID == "embedded-gpu" })
	}
	require.True(t, found())
	embedded.interrupt(t)
	require.NoError(t, await.Until(t.Context(), patience, "the offer left with the program", func(context.Context) error {
		if found() {
			return fault.New("examples.TestEmbed", fault.Unavailable, "the offer is still found")
		}
		return nil
	}))
}
