package grpcapi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// whole is an instance with all fields.
func whole() []byte {
	return (&instance.Instance{
		Key: instance.Key{Namespace: "n", Service: "s", ID: "a"}, Lease: "lease-1", Peer: "p", Revision: 7,
		Status: instance.StatusUp, Override: instance.StatusDown,
		Spec: instance.Spec{
			Host: "h", Port: 80, Version: "1.2.3", Interfaces: map[string]string{"REST": "http://h"}, Metadata: map[string]string{"k": "v"},
			Tags: []string{"t"}, Dependencies: []string{"d"}, Environment: "staging", Region: "r", Owner: "o", Description: "d",
			Zone: "z", Weight: 3, Check: &instance.Check{Type: instance.HTTP, Endpoint: "/", Interval: 1e9, Timeout: 1e8, HealthyThreshold: 1, UnhealthyThreshold: 2},
			UnhealthyAfter: 1e9, RemoveAfter: 2e9, Offer: []byte("{}"),
		},
	}).Marshal()
}

func entries(key string, value []byte) []*api.DirectoryEntry {
	return []*api.DirectoryEntry{{Key: []byte("directory/n/s/a"), Value: whole()}, {Key: []byte(key), Value: value}}
}

// Peers publish instances only, each under its own key. Later versions may add fields and values.
func TestPublishChecksInstances(t *testing.T) {
	late := append(whole(), 0xa0, 0x06, 0x01) // field 100
	late = append(late, 0x28, 0x7f)           // a status of a later version
	require.NoError(t, checkEntries(entries("directory/n/s/a", late)))
	for _, c := range []struct {
		kind  fault.Kind
		key   string
		value []byte
	}{
		{fault.Invalid, "directory/n/s/b", whole()},
		{fault.Invalid, "directory/n/s/a", nil},
		{fault.Invalid, "directory/n/s/a", whole()[:3]},
		{fault.Invalid, "directory/n/s/a", append(whole(), 0x82, 0x01, 0x80, 0x80, 0x01)}, // claims more than it has
		{fault.Invalid, "directory/n/s/a", []byte("no message")},
		{fault.Invalid, "directory/n/s/a", append(whole(), 0x1a, 0x01, 0xff)}, // a host that is not UTF-8
		{fault.TooLarge, "directory/n/s/a", append(whole(), make([]byte, directory.MaxEntry)...)},
	} {
		err := checkEntries(entries(c.key, c.value))
		require.ErrorIs(t, err, c.kind, "%s %x", c.key, c.value)
		require.Equal(t, "puts[1].value", fault.FieldOf(err))
	}
	require.Equal(t, "puts[1].key", fault.FieldOf(checkEntries(entries("requirements/a", whole()))))
}

// Every reader can decode an accepted entry.
func FuzzPublishedInstance(f *testing.F) {
	f.Add(whole())
	f.Fuzz(func(t *testing.T, value []byte) {
		if checkEntries([]*api.DirectoryEntry{{Key: []byte("directory/n/s/a"), Value: value}}) != nil {
			return
		}
		var i agentv1.Instance
		require.NoError(t, proto.Unmarshal(value, &i))
		require.Equal(t, []string{"n", "s", "a"}, []string{i.GetNamespace(), i.GetServiceName(), i.GetId()})
	})
}
