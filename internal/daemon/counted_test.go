package daemon

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
)

// TestCounted: a peer counts what its front ends and its group do.
func TestCounted(t *testing.T) {
	p := start(t, t.TempDir())
	_, err := p.Status(t.Context())
	require.NoError(t, err)
	s, err := p.Locks().Session(t.Context(), client.TTL(patience))
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	_, err = dns.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion("nothing.service.blackhole.", dns.TypeA), p.parts.fronts.address())
	require.NoError(t, err)
	var text string
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the catalog needs a moment after the start
		text = metricsAt(c, p.http)
		require.Contains(c, text, "\nblackhole_catalog_stale_seconds 0\n")
	}, patience, time.Millisecond)
	for _, line := range []string{
		`blackhole_grpc_calls_total{method="PeerService/Status",outcome="ok"} 1`, `blackhole_dns_answers_total{rcode="NXDOMAIN"} 1`,
		`blackhole_coordination_leader_changes_total 1`, `blackhole_coordination_silent_voters 0`,
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	require.Regexp(t, `blackhole_coordination_step_seconds_count\{step="commit"\} [1-9]`, text)
	require.Regexp(t, `blackhole_coordination_step_seconds_count\{step="fsync"\} [1-9]`, text)
	require.Regexp(t, `blackhole_store_bytes\{store="coordination"\} [1-9]`, text)
}

func metricsAt(t require.TestingT, address string) string {
	answer, err := http.Get(address + "/v1/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	return string(body)
}
