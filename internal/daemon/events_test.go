package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestEventsOfAPeer: the stream over gRPC begins with what mattered at a real peer, and tells why an instance ended.
func TestEventsOfAPeer(t *testing.T) {
	a := start(t, t.TempDir())
	k := instance.Key{Namespace: "default", Service: "pay", ID: "pay-1"}
	pay, err := a.Services().Register(t.Context(), instance.Registration{Key: k, Spec: instance.Spec{Host: "10.0.0.1", Port: 80}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := false
	for e, err := range a.Client.Events(ctx, operator.EventQuery{Since: "1h"}) {
		require.NoError(t, err)
		require.NotEmpty(t, e.ID)
		if !ended {
			ended = true
			require.NoError(t, pay.Close(t.Context()))
		}
		if slices.ContainsFunc(e.Notes, func(n discovery.Note) bool { return n.Kind == "instance" && strings.Contains(n.Text, "pay-1") }) {
			return
		}
	}
}

// TestLogLevelOverHTTP changes the level of a running peer.
func TestLogLevelOverHTTP(t *testing.T) {
	a := start(t, t.TempDir())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, a.http+"/v1/log-level", strings.NewReader(`{"level":"error"}`))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var got map[string]string
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
	require.Equal(t, map[string]string{"level": "error", "previous": "warn"}, got)
}
