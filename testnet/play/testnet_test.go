package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/oracle"
	"github.com/blackhole/blackhole/testnet/process"
)

// TestTour is the real thing, small: every step, on processes, and what a visitor gets then.
func TestTour(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	stdout, stderr := new(text), new(text)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	go func() { // until stop
		ended <- execute(ctx, []string{"-peers", "4", "-records", "30", "-updates", "20", "-json", "-data", data}, stdout, stderr)
	}()
	err := await.Until(t.Context(), 10*time.Minute, "the invitation", func(context.Context) error {
		switch {
		case strings.Contains(stderr.String(), "Ctrl-C ends it"):
			return nil
		case len(ended) > 0:
			return await.Never(errors.New("it has ended"))
		}
		return errors.New("not yet")
	})
	require.NoError(t, err, "%s%s", stdout, stderr)
	window(t, stderr.String(), 4, 30)
	stop()
	require.Equal(t, exitOK, <-ended, "%s%s", stdout, stderr)

	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got), "one object and nothing else: %s", stdout)
	require.Equal(t, 4, got.Peers)
	require.Equal(t, 30, got.Records)
	require.Len(t, got.Steps, 25)
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

	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, left, "the peers' data is removed")
}

// TestUsage: every flag is checked, and named when it is refused.
func TestUsage(t *testing.T) {
	for args, message := range map[string]string{
		"-peers=2":             "-peers: must be 4 to 200, not 2",
		"-records=801":         "-records: must be 24 to 800 (100 for each of 8 peers), not 801",
		"-records=0":           "-records: must be 24 to 800",
		"-updates=0":           "-updates: must be at least 1",
		"-idle=1s":             "-idle: must be at least 10s, not 1s",
		"-peers=x":             "invalid value",
		"-no-such-flag":        "not defined",
		"peers":                "arguments: there are none",
		"-tour=false=yes":      "invalid boolean value",
		"lab -scenario=moon":   "-scenario: must be all or of homes, ",
		"lab -runs=0":          "-runs: must be 1 to 1000, not 0",
		"lab -parallel=17":     "-parallel: must be 1 to 16, not 17",
		"lab homes":            "arguments: there are none",
		"nemesis -duration 0s": "-duration: must be",
		"nemesis -peers 3":     "-peers: must be",
		"nemesis -peers 10":    "-peers: must be",
		"nemesis -others -1":   "-others: must be",
		"nemesis -scenario x":  "-scenario: must be one of all, backup, ",
		"nemesis -seeds 0":     "-seeds: must be",
		"nemesis -pause 0s":    "-pause: must be",
		"nemesis -recovery 0s": "-recovery: must be",
		"nemesis now":          "arguments: there are none",
		"sim -scenario nope":   "-scenario: must be one of join, ",
		"sim -peers 3":         "-peers: must be 4 to 1000",
		"sim -peers 1001":      "-peers: must be",
		"sim -records -1":      "-records: must be",
		"sim -records 5001":    "-records: must be 1 to 5000",
		"sim -connections 3":   "-connections: 3 is too small",
		"sim -enemies 3":       "-enemies: belongs to -scenario sybil",
		"sim -rtt 3s":          "-rtt: must be",
		"sim -loss 0.6":        "-loss: must be",
		"sim -loss NaN":        "-loss: must be",
		"sim join":             "arguments: there are none",
		"upgrade more":         "arguments: there are none",
		"upgrade -colour red":  "not defined",
		"kill":                 "PEER: kill needs the name of a peer",
		"pause":                "PEER: pause needs",
		"status x":             "status has none",
		"add x":                "add has none",
		"cut peer-1":           "pause is the nearest",
		"stop":                 "the orders are status, load,",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, execute(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.Contains(t, stderr.String(), message, args)
		require.Empty(t, stdout.String())
	}
	for _, args := range []string{"-h", "lab -h", "nemesis -h", "sim -h", "upgrade -h", "load -h"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitOK, execute(t.Context(), strings.Fields(args), &stdout, &stderr))
		require.Contains(t, stderr.String(), "usage: go run ./testnet")
	}
}

// built returns a binary of blackholed.
func built(t *testing.T) string {
	t.Helper()
	binary, err := process.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	return binary
}

// TestOracle asks real peers random questions, and follows watches.
func TestOracle(t *testing.T) {
	t.Parallel()
	questions := 300
	if os.Getenv("TEST_LONG") != "" {
		questions = 3000
	}
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), []string{"oracle", "-peers", "5", "-records", "200", "-questions", fmt.Sprint(questions), "-watches", "40", "-data", t.TempDir(), "-json"}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)
	var got oracle.Report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
	require.Equal(t, questions, got.Questions)
	require.Greater(t, got.Results, questions, "questions that find nothing prove little")
	require.Greater(t, got.Watches, 40)
}
