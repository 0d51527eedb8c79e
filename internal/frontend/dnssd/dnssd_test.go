package dnssd

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// neighbours are what a local network was told, by id and port.
type neighbours map[string]bool

type goodbye func()

func (g goodbye) Shutdown() { g() }

// batches is a Catalog whose watch sends what the test sends.
type batches struct {
	instances.Catalog
	c chan instance.Batch
}

func (b batches) Watch(ctx context.Context, q instance.Query, _ uint64, send func(instance.Batch) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case batch := <-b.c:
			if err := send(batch); err != nil {
				return err
			}
		}
	}
}

func TestAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard, networks, sockets := neighbours{}, "10.0.0.1/24", 0
		var logged []string
		catalog := batches{c: make(chan instance.Batch)}
		m := New(catalog, "self", slog.New(warnings{&logged}))
		m.networks = func() string { return networks }
		m.announce = func(a announcement) (interface{ Shutdown() }, error) {
			name := fmt.Sprintf("%s._%s:%d", a.id, a.service, a.port)
			require.NotContains(t, heard, name)
			heard[name] = true
			sockets++
			return goodbye(func() { delete(heard, name) }), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		of := func(id, host, peer string, port int) *instance.Instance {
			return &instance.Instance{
				Key:  instance.Key{Namespace: "default", Service: "web", ID: id},
				Spec: instance.Spec{Host: host, Port: port}, Peer: peer, Status: instance.StatusUp,
			}
		}
		says := func(reset bool, kind instance.EventType, list ...*instance.Instance) []string {
			b := instance.Batch{Reset: reset}
			for _, i := range list {
				b.Events = append(b.Events, instance.Event{Type: kind, Instance: i})
			}
			catalog.c <- b
			synctest.Wait()
			return slices.Sorted(maps.Keys(heard))
		}
		require.Equal(t, []string{"a._web:80", "b.c._web:80"}, says(true, instance.Added,
			of("a", "10.0.0.1", "self", 80), of("b.c", "fd00::1", "", 80), of("other", "10.0.0.2", "peer", 80),
			of("loopback", "127.0.0.1", "self", 80), of("named", "web.example", "self", 80)))
		require.Equal(t, 2, sockets)
		require.Equal(t, []string{"a._web:81", "b.c._web:80"}, says(false, instance.Modified, of("a", "10.0.0.1", "self", 81)))
		require.Equal(t, []string{"a._web:81", "b.c._web:80"}, says(false, instance.Modified, of("a", "10.0.0.1", "self", 81)))
		require.Equal(t, 3, sockets, "an equal instance is not announced again")
		require.Equal(t, []string{"a._web:81"}, says(false, instance.Removed, of("b.c", "fd00::1", "", 80)))

		networks = "10.0.1.1/24"
		require.Equal(t, []string{"a._web:81"}, says(false, instance.Added))
		require.Equal(t, 4, sockets, "sockets listen on the networks of their time")

		var many []*instance.Instance
		for i := range maxInstances + 2 {
			many = append(many, of(fmt.Sprint(i), "10.0.0.1", "self", 80))
		}
		require.Len(t, says(true, instance.Added, many...), maxInstances)
		require.Len(t, says(false, instance.Modified, many[0]), maxInstances)
		require.Len(t, logged, 1, "the same warning once")

		cancel()
		<-done
		require.Empty(t, heard, "a peer that goes says goodbye")
	})
}

// warnings is a slog.Handler that keeps messages.
type warnings struct{ list *[]string }

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	*w.list = append(*w.list, r.Message)
	return nil
}
func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w warnings) WithGroup(string) slog.Handler      { return w }
