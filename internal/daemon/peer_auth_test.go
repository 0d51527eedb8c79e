package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDoormanLeavesALine: one line a minute for each refused peer, however often it asks, and none for others.
func TestDoormanLeavesALine(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(0, 0)
	var refusal error
	d := newPeerAuth(func(context.Context) (string, error) { return "peer-a", fault.Wrap("coordination.Admit", refusal) },
		slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	ask := func(err error) int {
		refusal = err
		_, got := d.owner(t.Context())
		require.Equal(t, fault.KindOf(err), fault.KindOf(got))
		return strings.Count(log.String(), "audit=client_refused")
	}
	stranger := func(id string) error {
		return &fault.Error{Kind: fault.Forbidden, Field: "peer", Value: id, Err: fault.New("", fault.Forbidden, "not a client")}
	}
	require.Zero(t, ask(nil))
	require.Zero(t, ask(fault.New("", fault.Unavailable, "no leader")))
	require.Equal(t, 1, ask(stranger("x")))
	require.Equal(t, 1, ask(stranger("x")))
	require.Equal(t, 2, ask(stranger("y")))
	now = now.Add(time.Minute)
	require.Equal(t, 3, ask(stranger("x")))
	require.Contains(t, log.String(), `peer=x reason="not a client"`)
}
