package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

// TestMain builds blackholed once, beside this program, where process.Build finds it. A run of chosen tests builds when a test
// needs it.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() && flag.Lookup("test.run").Value.String() == "" {
		self, err := os.Executable()
		if err == nil {
			_, err = process.Build(context.Background(), filepath.Dir(self))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
	}
	os.Exit(m.Run())
}

// TestTour is the real thing, small: every step, on processes.
func TestTour(t *testing.T) {
	if testing.Short() {
		t.Skip("builds blackholed and starts processes")
	}
	data, ports := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "ports.json")
	require.NoError(t, os.WriteFile(ports, []byte("of an earlier network"), 0o600))
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), []string{
		"-peers", "4", "-records", "30", "-updates", "20", "-exit", "-json", "-data", data, "-ports", ports,
	}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)

	var got report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got), "one object and nothing else: %s", &stdout)
	require.Equal(t, 4, got.Peers)
	require.Equal(t, 30, got.Records)
	require.Len(t, got.Steps, 23)
	for _, step := range got.Steps {
		require.True(t, step.OK, "%s: %s", step.Name, step.Detail)
		require.NotEmpty(t, step.Detail)
	}
	for name, figure := range map[string]float64{
		"ready_seconds": got.ReadySeconds, "publish_p95_ms": got.PublishP95Ms, "first_query_ms": got.FirstQueryMs,
		"cached_query_us": got.CachedQueryUs, "update_visible_p99_ms": got.UpdateVisibleP99Ms,
	} {
		require.Positive(t, figure, name)
	}

	var written []network.Port
	text, err := os.ReadFile(ports)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &written), "%s", text)
	require.Len(t, written, 4)
	for _, p := range written {
		require.NotEmpty(t, p.PeerID)
		require.NotEmpty(t, p.Listen)
		require.Equal(t, data, filepath.Dir(p.Data))
	}
	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, left, "the peers' data is removed")
}

func TestUsage(t *testing.T) {
	for args, message := range map[string]string{
		"-peers=2":        "-peers: must be 4 to 200, not 2",
		"-records=801":    "-records: must be 24 to 800 (100 for each of 8 peers), not 801",
		"-records=0":      "-records: must be 24 to 800",
		"-updates=0":      "-updates: must be at least 1",
		"-idle=1s":        "-idle: must be at least 10s, not 1s",
		"-peers=x":        "invalid value",
		"-no-such-flag":   "not defined",
		"peers":           "arguments: there are none",
		"-tour=false=yes": "invalid boolean value",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, execute(t.Context(), []string{args}, &stdout, &stderr), args)
		require.Contains(t, stderr.String(), message)
		require.Empty(t, stdout.String())
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitOK, execute(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "usage: go run ./testnet")
}

func TestScreen(t *testing.T) {
	var out bytes.Buffer
	plain := newScreen(&out)
	require.False(t, plain.live)
	plain.draw([]byte("a\nb\n"))
	plain.draw([]byte("c\nd\n"))
	require.Equal(t, "a\nb\nc\nd\n", out.String())

	out.Reset()
	terminal := &screen{out: &out, live: true}
	terminal.draw([]byte("a\nb\n"))
	terminal.draw([]byte("c\nd\n"))
	require.Equal(t, "\x1b[?7la\nb\n\x1b[?7h\x1b[2A\x1b[J\x1b[?7lc\nd\n\x1b[?7h", out.String())
}

// built returns a fresh binary of blackholed. It skips the test in short mode.
func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds blackholed and starts processes")
	}
	binary, err := process.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	return binary
}
