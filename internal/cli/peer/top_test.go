package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/instance"
)

const provider = "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"

const stranger = "12D3KooWGRUfK8KVbyWvWwwVhHWMzfBVBV9UAkpLuQhBzWcR9Jkz"

// busy is an overview with more of everything than a screen has lines.
func busy(revision coord.Revision) *overview {
	v := &overview{
		at: time.Now(), Group: &coord.GroupState{Phase: "member", Leader: provider, Revision: revision, Tolerance: "3 of 3 voters: 1 failure"},
		Status: discovery.Status{PeerID: provider, Name: "attic", Network: "office", Version: "v1", Reach: discovery.Reach{Text: "public"}},
	}
	for i := range 40 {
		v.Services = append(v.Services, instance.Summary{Name: fmt.Sprintf("service-%d-%s", i, strings.Repeat("x", i)), Instances: 3, Up: i % 4})
		v.Locks = append(v.Locks, coordination.LockState{Name: fmt.Sprintf("lock/%d", i), Holding: []coordination.ClaimState{{Holder: provider, Application: "app\x1b[2J", AgeMs: 3000}}})
		v.Peers = append(v.Peers, discovery.PeerInfo{ID: stranger, Agent: strings.Repeat("agent ", 30)})
	}
	return v
}

func longest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
	}
	return most
}

func TestTopFitsTheScreen(t *testing.T) {
	for _, rows := range []int{24, 10, 50} {
		text := picture{now: busy(1), rows: rows}.On(term.Screen{Columns: 80})
		require.LessOrEqual(t, longest(text), 80, text)
		require.LessOrEqual(t, strings.Count(text, "\n"), rows, text)
		require.NotContains(t, text, "\x1b")
	}
	text := picture{now: busy(1), rows: 24}.On(term.Screen{Columns: 80})
	for _, part := range []string{"attic …pEUuqCVB", "service-0", "lock/0", "…zWcR9Jkz", " more\n"} {
		require.Contains(t, text, part)
	}
}

// TestTop draws a picture each interval, with rates, also while the peer does not answer, and restores the terminal.
func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		con := &term.Console{Stdout: &out, Terminal: term.Terminal{Size: func() (int, int) { return 80, 24 }}, Environ: []string{"NO_COLOR=1"}}
		answers := 0
		ask := func(context.Context) (*overview, error) {
			if answers++; answers == 3 {
				return nil, errors.New("connection refused")
			}
			return busy(coord.Revision(100 * answers)), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- animate(ctx, con, 2*time.Second, ask) }()
		frames := func() []string { return strings.Split(out.String(), "\x1b[H")[1:] }
		for n, want := range []string{"revision 100\x1b[K", "revision 200 (+50.0/s)", "connection refused", "revision 400 (+50.0/s)"} {
			synctest.Wait()
			require.Len(t, frames(), n+1)
			require.Contains(t, frames()[n], want)
			time.Sleep(2 * time.Second)
		}
		cancel()
		require.NoError(t, <-done)
		require.True(t, strings.HasPrefix(out.String(), "\x1b[?1049h"))
		require.True(t, strings.HasSuffix(out.String(), "\x1b[?1049l"))
	})
}

// TestTopEndsByQ: a key ends it, and gives the terminal back.
func TestTopEndsByQ(t *testing.T) {
	for _, key := range []string{"q", "Q", "\x03", "xq"} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			raw := 0
			con := &term.Console{Stdout: &out, Stdin: strings.NewReader(key), Terminal: term.Terminal{
				Size: func() (int, int) { return 80, 24 }, Raw: func() func() { raw++; return func() { raw-- } },
			}}
			require.NoError(t, animate(t.Context(), con, time.Second, func(context.Context) (*overview, error) { return busy(1), nil }))
			require.Zero(t, raw)
			require.True(t, strings.HasSuffix(out.String(), "\x1b[?1049l"))
		})
	}
}

// TestTopWithoutAPeer ends at once, without a change of the screen.
func TestTopWithoutAPeer(t *testing.T) {
	var out bytes.Buffer
	con := &term.Console{Stdout: &out, Terminal: term.Terminal{Size: func() (int, int) { return 80, 24 }}}
	err := animate(t.Context(), con, time.Second, func(context.Context) (*overview, error) { return nil, errors.New("refused") })
	require.ErrorContains(t, err, "refused")
	require.Empty(t, out.String())
}
