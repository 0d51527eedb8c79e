package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/control"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/tour"
)

// text is a bytes.Buffer for a writer and a reader at once.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// start runs a testnet without a tour until the end of the test, and waits until it invites.
func start(t *testing.T, binary, peers string) *text {
	t.Helper()
	out := new(text)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { // until stop
		done <- execute(ctx, []string{"-peers", peers, "-records", "24", "-tour=false", "-binary", binary}, out, out)
	}()
	t.Cleanup(func() {
		stop()
		require.Equal(t, exitOK, <-done, "%s", out)
	})
	err := await.Until(t.Context(), 5*time.Minute, "the invitation", func(context.Context) error {
		if !strings.Contains(out.String(), "Ctrl-C ends it") {
			return errors.New("not yet")
		}
		return nil
	})
	require.NoError(t, err, "%s", out)
	return out
}

// TestPlay runs two testnets side by side, gives orders to one, and types what it invites to.
func TestPlay(t *testing.T) {
	binary := built(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	first := start(t, binary, "3")
	order := func(code int, args ...string) string {
		t.Helper()
		var out, stderr bytes.Buffer
		require.Equal(t, code, execute(t.Context(), args, &out, &stderr), "%q: %s%s", args, &out, &stderr)
		return out.String() + stderr.String()
	}
	for line := range strings.Lines(order(exitOK, "status")) {
		require.LessOrEqual(t, len(line), 80, "%q", line)
	}
	typed(t, first.String())

	dirs, err := control.Find(t.Context(), temporary)
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	second := start(t, binary, "1")
	require.NotEqual(t, exported(first.String()), exported(second.String()))
	require.Contains(t, order(exitUsage, "status"), "2 testnets run")

	at := func(verb string, args ...string) []string { return append([]string{verb, "-at", dirs[0]}, args...) }
	require.Contains(t, order(exitOK, at("pause", "peer-2")...), "peer-2: paused by SIGSTOP")
	require.Contains(t, order(exitOK, "kill", "peer-3", "-at", dirs[0]), "peer-3: killed")
	table := order(exitOK, at("status")...)
	require.Regexp(t, `peer-2 .* paused`, table)
	require.Regexp(t, `peer-3 .* ended`, table)
	require.Contains(t, order(exitFailed, at("pause", "peer-3")...), "does not run")
	require.Contains(t, order(exitFailed, at("kill", "peer-1", "peer-9")...), `must be peer-1 to peer-3, not "peer-9"`)
	require.Regexp(t, `peer-2: goes on\npeer-3: started again`, order(exitOK, at("heal")...))
	require.Contains(t, order(exitOK, at("heal", "peer-1")...), "was well", "an order with an unknown peer does nothing")
	require.Contains(t, order(exitOK, at("add")...), "peer-4 joined")
	require.Regexp(t, `4 peers asked for 1s: \d+ complete`, order(exitOK, at("load", "1")...))
	table = order(exitOK, at("status")...)
	require.NotRegexp(t, "paused|ended|silent", table)
	require.Equal(t, 5, strings.Count(table, "\n"), "%s", table)
}

// typed types the commands of an invitation into a shell.
func typed(t *testing.T, invitation string) {
	t.Helper()
	var exports, typed []string
	for line := range strings.Lines(invitation) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "export "):
			exports = append(exports, line)
		case strings.HasPrefix(line, "blackholed "):
			require.LessOrEqual(t, len(line), 78, line)
			typed = append(typed, line)
		}
	}
	require.Len(t, exports, 2)
	require.Equal(t, commands(), typed)
	for _, line := range typed {
		script := strings.Join(append(slices.Clone(exports), line), "\n")
		out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		require.NotEmpty(t, out, script)
		if strings.Contains(line, "instance find") {
			require.Contains(t, string(out), network.Demo+"-peer-1", "its instances are UP")
		}
	}
}

// exported is the address that an invitation chooses.
func exported(invitation string) string {
	_, rest, _ := strings.Cut(invitation, "BLACKHOLE_GRPC=")
	address, _, _ := strings.Cut(rest, "\n")
	return address
}

func TestOrderUsage(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out, stderr bytes.Buffer
	require.Equal(t, exitFailed, execute(t.Context(), []string{"heal"}, &out, &stderr))
	require.Contains(t, stderr.String(), "no testnet takes orders: start one by go run ./testnet")
	stderr.Reset()
	require.Equal(t, exitOK, execute(t.Context(), []string{"load", "-h"}, &out, &stderr))
	for _, verb := range verbs() {
		require.Contains(t, stderr.String(), "\n  "+verb)
	}
	for _, bad := range []string{"0", "61", "x"} {
		_, err := seconds([]string{bad})
		require.ErrorContains(t, err, "must be one number from 1 to 60")
	}
}

// TestStepsFit: number, outcome, name and time of every step fit into 80 columns, and a terminal
// sees the step that runs.
func TestStepsFit(t *testing.T) {
	var out bytes.Buffer
	p := &progress{screen: &screen{out: &out, live: true}}
	for _, name := range tour.Names() {
		out.Reset()
		p.begin(name)
		require.Contains(t, out.String(), "...  "+name)
		require.LessOrEqual(t, out.Len(), 80)
		out.Reset()
		p.end(tour.Result{Name: name, OK: true, Took: 5 * time.Minute, Detail: strings.Repeat("x", 200)})
		line := strings.TrimPrefix(out.String(), "\r\x1b[K")
		require.Len(t, line, 80, "79 and the end of the line")
		require.Contains(t, line, name)
		require.Contains(t, line, "300.00 s")
	}
	out.Reset()
	p.end(tour.Result{Name: "x", Detail: strings.Repeat("why ", 50)})
	require.Equal(t, 50, strings.Count(out.String(), "why"), "a failure is told in full")
	require.Equal(t, "1 of 25 steps held", summary([]tour.Result{{OK: true}, {}}))
	require.Equal(t, "1 of 25 steps held (1 skipped)", summary([]tour.Result{{OK: true}, {OK: true, Skip: true}}))
	require.Contains(t, stepLine(7, tour.Result{Name: "x", OK: true, Skip: true, Detail: "why"}), "skip x")
}

// TestHowTo: the page has the commands and orders of the program, and no others.
func TestHowTo(t *testing.T) {
	page, err := os.ReadFile("../../docs/howto/playground.md")
	require.NoError(t, err)
	var typed, given []string
	for line := range strings.Lines(string(page)) {
		line, shown := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		order, ordered := strings.CutPrefix(line, "go run ./testnet ")
		switch {
		case shown && ordered:
			words := strings.Fields(order)
			_, _, err := parseOrder(call{name: words[0], args: words[1:], stderr: io.Discard})
			require.NoError(t, err, line)
			given = append(given, words[0])
		case shown && strings.HasPrefix(line, "blackholed "):
			typed = append(typed, line)
		}
	}
	require.Equal(t, commands(), typed)
	require.ElementsMatch(t, verbs(), given)
}
