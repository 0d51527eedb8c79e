package etcdclient

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// BenchmarkLocks takes and frees locks of clients at once, each a lock of its own in a session of its own, at the endpoints of
// ETCD_ENDPOINTS: a group of peers, or etcd itself.
func BenchmarkLocks(b *testing.B) {
	endpoints := os.Getenv("ETCD_ENDPOINTS")
	if endpoints == "" {
		b.Skip("ETCD_ENDPOINTS names no servers")
	}
	for _, clients := range []int{1, 64} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			locks := make([]*concurrency.Mutex, clients)
			for n := range locks {
				list := strings.Split(endpoints, ",")
				c, err := clientv3.New(clientv3.Config{Endpoints: []string{list[n%len(list)]}})
				require.NoError(b, err)
				defer func() { require.NoError(b, c.Close()) }()
				s, err := concurrency.NewSession(c)
				require.NoError(b, err)
				locks[n] = concurrency.NewMutex(s, "/bench/"+strconv.Itoa(n))
			}
			var all sync.WaitGroup
			b.ResetTimer()
			for n, lock := range locks {
				all.Go(func() {
					for i := n; i < b.N; i += clients {
						if err := lock.Lock(b.Context()); err != nil {
							b.Error(err)
							return
						}
						if err := lock.Unlock(b.Context()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
		})
	}
}
