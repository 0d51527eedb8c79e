package consulclient

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"
)

// BenchmarkInstances registers, finds and deregisters instances at the addresses of CONSUL_ADDRESSES: of peers, or of Consul itself.
func BenchmarkInstances(b *testing.B) {
	addresses := os.Getenv("CONSUL_ADDRESSES")
	if addresses == "" {
		b.Skip("CONSUL_ADDRESSES names no servers")
	}
	list := strings.Split(addresses, ",")
	clientOf := func(b *testing.B, n int) *api.Client { // with connections of its own
		c, err := api.NewClient(&api.Config{Address: list[n%len(list)]})
		require.NoError(b, err)
		return c
	}
	of := func(service, id string) *api.AgentServiceRegistration {
		return &api.AgentServiceRegistration{
			ID: service + id, Name: service, Address: "127.0.0.1", Port: 8080, Tags: []string{"a", "b"}, Meta: map[string]string{"v": "1"},
			Check: &api.AgentServiceCheck{CheckID: service + id, TTL: "1h", Status: api.HealthPassing},
		}
	}
	const found = 10 // instances that a reader finds
	first := clientOf(b, 0)
	for n := range found {
		require.NoError(b, first.Agent().ServiceRegister(of("found", strconv.Itoa(n))))
		defer func() { require.NoError(b, first.Agent().ServiceDeregister("found"+strconv.Itoa(n))) }()
	}
	for n := range list {
		require.Eventually(b, func() bool {
			all, _, err := clientOf(b, n).Health().Service("found", "", true, nil)
			return err == nil && len(all) == found
		}, time.Minute, 100*time.Millisecond)
	}
	for name, one := range map[string]func(c *api.Client, id string) error{
		"change": func(c *api.Client, id string) error {
			if err := c.Agent().ServiceRegister(of("changing", id)); err != nil {
				return err
			}
			return c.Agent().ServiceDeregister("changing" + id)
		},
		"seen": func(c *api.Client, id string) error { // until a watch of the service tells of it
			if err := c.Agent().ServiceRegister(of("seen"+id, id)); err != nil {
				return err
			}
			for at := uint64(1); ; {
				all, meta, err := c.Health().Service("seen"+id, "", true, &api.QueryOptions{WaitIndex: at, WaitTime: time.Minute})
				if err != nil {
					return err
				}
				if at = meta.LastIndex; len(all) == 1 {
					return c.Agent().ServiceDeregister("seen" + id + id)
				}
			}
		},
		"read": func(c *api.Client, _ string) error {
			_, _, err := c.Health().Service("found", "", true, nil)
			return err
		},
	} {
		for _, clients := range []int{1, 64} {
			b.Run(name+"/"+strconv.Itoa(clients), func(b *testing.B) {
				var all sync.WaitGroup
				took := make([][]time.Duration, clients)
				callers := make([]*api.Client, clients)
				for n := range callers {
					callers[n] = clientOf(b, n)
				}
				b.ResetTimer()
				for n, c := range callers {
					all.Go(func() {
						for i := n; i < b.N; i += clients {
							start := time.Now()
							if err := one(c, strconv.Itoa(i%100_000)); err != nil {
								b.Error(err)
								return
							}
							took[n] = append(took[n], time.Since(start))
						}
					})
				}
				all.Wait()
				b.StopTimer()
				every := slices.Sorted(slices.Values(slices.Concat(took...)))
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
				if len(every) > 0 {
					b.ReportMetric(float64(every[len(every)*99/100].Microseconds()), "p99-us")
				}
			})
		}
	}
}
