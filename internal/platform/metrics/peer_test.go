package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestPeerMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	calls, err := NewCalls(reg)
	require.NoError(t, err)
	calls.Called("/blackhole.api.v1.LockService/Lock", time.Millisecond, nil)
	calls.Called("/blackhole.api.v1.LockService/Lock", time.Millisecond, fault.New("", fault.LimitReached, "full"))
	ended := calls.Streamed("/blackhole.api.v1.RecordService/Watch")
	calls.Streamed("/blackhole.api.v1.RecordService/Watch")
	ended(nil)
	require.NoError(t, RegisterDNS(reg, func() DNS {
		return DNS{Queries: 10, TCP: 3, Truncated: 2, Limited: 4, Dropped: 5, Refused: 6, Answers: map[int]uint64{0: 7, 23: 8}}
	}, func(rcode int) string { return map[int]string{0: "NOERROR"}[rcode] }))
	require.NoError(t, RegisterCatalog(reg, func() Catalog { return Catalog{Services: 1, Instances: 2, Watches: 3, StaleSeconds: 4.5} }))
	require.NoError(t, RegisterStores(reg, []string{"registry", "dht"}, func(s string) int64 { return int64(len(s)) }))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	for line := range strings.SplitSeq(`blackhole_grpc_calls_total{method="LockService/Lock",outcome="limit_reached"} 1
blackhole_grpc_calls_total{method="LockService/Lock",outcome="ok"} 1
blackhole_grpc_calls_total{method="RecordService/Watch",outcome="ok"} 1
blackhole_grpc_streams{method="RecordService/Watch"} 1
blackhole_dns_queries_total{transport="tcp"} 3
blackhole_dns_queries_total{transport="udp"} 7
blackhole_dns_answers_total{rcode="23"} 8
blackhole_dns_answers_total{rcode="NOERROR"} 7
blackhole_dns_truncated_total 2
blackhole_dns_dropped_total{reason="limited"} 4
blackhole_dns_dropped_total{reason="malformed"} 5
blackhole_dns_connections_refused_total 6
blackhole_catalog_services 1
blackhole_catalog_instances 2
blackhole_catalog_watches 3
blackhole_catalog_stale_seconds 4.5
blackhole_store_bytes{store="dht"} 3
blackhole_store_bytes{store="registry"} 8`, "\n") {
		require.Contains(t, w.Body.String(), "\n"+line+"\n")
	}
	require.NoError(t, RegisterBuild(reg, Build{Version: "v1"}))
	require.Equal(t, fault.Exists, fault.KindOf(RegisterBuild(reg, Build{Version: "v1"})))
}
