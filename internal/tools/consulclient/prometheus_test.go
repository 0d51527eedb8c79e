package consulclient

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/consul"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/stretchr/testify/require"
)

// TestPrometheus: consul_sd of Prometheus finds a service, follows it, and lets it go.
func TestPrometheus(t *testing.T) {
	address := peer(t)
	c, err := api.NewClient(&api.Config{Address: address})
	require.NoError(t, err)
	settings := consul.DefaultSDConfig
	settings.Server, settings.Services, settings.RefreshInterval = address, []string{"scraped"}, model.Duration(100*time.Millisecond)
	metrics := settings.NewDiscovererMetrics(prometheus.NewRegistry(), nil)
	require.NoError(t, metrics.Register())
	d, err := settings.NewDiscoverer(discovery.DiscovererOptions{Metrics: metrics})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	groups := make(chan []*targetgroup.Group)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx, groups)
	}()
	until := func(targets int) *targetgroup.Group {
		for {
			select {
			case all := <-groups:
				for _, g := range all {
					if g != nil && len(g.Targets) == targets {
						return g
					}
				}
			case <-ctx.Done():
				require.NoError(t, ctx.Err())
			}
		}
	}
	agent := c.Agent()
	require.NoError(t, agent.ServiceRegister(&api.AgentServiceRegistration{ID: "scraped-1", Name: "scraped", Address: "127.0.0.1", Port: 9100, Tags: []string{"blue"}}))
	g := until(1)
	require.EqualValues(t, "127.0.0.1:9100", g.Targets[0]["__address__"])
	require.EqualValues(t, ",blue,", g.Targets[0]["__meta_consul_tags"])
	require.NoError(t, agent.ServiceRegister(&api.AgentServiceRegistration{ID: "scraped-2", Name: "scraped", Address: "127.0.0.1", Port: 9101}))
	until(2)
	for _, id := range []string{"scraped-1", "scraped-2"} {
		require.NoError(t, agent.ServiceDeregister(id))
	}
	until(0)
	cancel()
	<-ended
}
