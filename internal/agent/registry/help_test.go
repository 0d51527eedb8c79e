package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// epoch is the start of the tests.
func epoch() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

const self = "12D3KooWTestTestTestTestTestTestTestTestTestTestTest"

func config(fs vfs.FS) Config {
	return Config{Dir: "/home/instances", FS: fs, Self: self, Random: rand.NewChaCha8([32]byte{1})}
}

func open(t testing.TB, c Config, now time.Time) *Registry {
	t.Helper()
	r, err := Open(c, now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func registration(id string) instance.Registration {
	return instance.Registration{
		Key:  instance.Key{Namespace: "default", Service: "web", ID: id},
		Spec: instance.Spec{Host: "10.0.0.1", Port: 8080},
	}
}

func checked(id string) instance.Registration {
	r := registration(id)
	r.Spec.Check = &instance.Check{Type: instance.HTTP}
	return r
}

func register(t require.TestingT, r *Registry, reg instance.Registration, now time.Time) *instance.Instance {
	out, err := r.Register(reg, now)
	require.NoError(t, err)
	return out.Instance
}

func status(t require.TestingT, r *Registry, id string) instance.Status {
	i, ok := r.Get(registration(id).Key)
	require.True(t, ok, id)
	return i.Status
}

func beat(r *Registry, id string, now time.Time) instances.Beat {
	return r.Heartbeat([]instances.Ref{{Key: registration(id).Key}}, now)[0]
}

// follower collects changes and checks their order.
type follower struct {
	t        require.TestingT
	seen     map[instance.Key]*instance.Instance
	revision uint64
	log      []string // "id STATUS reason"
}

// follow sets c.Changed; seen may be nil.
func follow(t require.TestingT, c *Config) *follower {
	f := &follower{t: t, seen: make(map[instance.Key]*instance.Instance)}
	c.Changed = f.changed
	return f
}

func (f *follower) changed(changes []instances.Change) {
	for _, c := range changes {
		require.Greater(f.t, c.Revision, f.revision)
		f.revision = c.Revision
		require.False(f.t, f.seen[c.Key].Same(c.Instance), "nothing changed")
		if c.Instance == nil {
			delete(f.seen, c.Key)
			f.log = append(f.log, fmt.Sprintf("%s gone %s", c.ID, c.Reason))
			continue
		}
		require.Equal(f.t, c.Key, c.Instance.Key)
		require.Equal(f.t, c.Revision, c.Instance.Revision)
		f.seen[c.Key] = c.Instance
		f.log = append(f.log, fmt.Sprintf("%s %s %s", c.ID, c.Instance.Status, c.Reason))
	}
}

// take returns the log and clears it.
func (f *follower) take() []string {
	log := f.log
	f.log = nil
	return log
}

// agrees compares the delivered changes with the registry.
func (f *follower) agrees(t require.TestingT, r *Registry) {
	all, revision := r.All()
	require.Len(t, all, len(f.seen))
	for _, i := range all {
		require.Same(t, f.seen[i.Key], i)
	}
	require.GreaterOrEqual(t, revision, f.revision)
	require.Len(t, r.leases, len(all))
	require.Equal(t, len(all), r.queue.Len())
}

// realistic is the registration of a typical service.
func realistic(n int) instance.Registration {
	service := fmt.Sprintf("service-%03d", n%500)
	return instance.Registration{
		Key: instance.Key{Service: service, ID: fmt.Sprintf("%s-%08x", service, n)},
		Spec: instance.Spec{
			Host:         fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255),
			Port:         8080,
			Version:      "2.1.0",
			Interfaces:   map[string]string{"REST": fmt.Sprintf("http://10.1.2.3:%d", 8080+n%100), "gRPC": "grpc://10.1.2.3:9090"},
			Metadata:     map[string]string{"team": "payments", "commit": fmt.Sprintf("%040x", n), "rack": "r12", "canary": "false"},
			Tags:         []string{"core", "http", "v2"},
			Dependencies: []string{"ledger", "users"},
			Environment:  "production",
			Region:       "eu-central-1",
			Owner:        "payments@example.org",
			Description:  "Takes payments and tells the ledger about them.",
			Zone:         "eu-central-1a",
			Weight:       10,
			Check:        &instance.Check{Type: instance.HTTP, Endpoint: "/health"},
			Offer:        json.RawMessage(bytes.Repeat([]byte(" "), 0)),
		},
	}
}
