package instances

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func TestQuestion(t *testing.T) {
	q := instance.Query{
		Name: instance.Name{Namespace: "default", Service: "s"},
		Selector: instance.Selector{
			Statuses: []instance.Status{instance.StatusUp, instance.StatusStarting}, ID: "i", Zone: "z", Version: "1.x", Tags: []string{"t"}, Environment: "e", Dependency: "d",
		},
	}
	b, err := Question(q)
	require.NoError(t, err)
	got, err := ParseQuestion(b)
	require.NoError(t, err)
	require.Equal(t, q, got)
	for field, change := range map[string]func(*instance.Query){
		"namespace":            func(q *instance.Query) { q.Namespace = "" },
		"service":              func(q *instance.Query) { q.Service = "a b" },
		"selector.prefer_zone": func(q *instance.Query) { q.PreferZone = "z" },
		"selector.version":     func(q *instance.Query) { q.Version = strings.Repeat("1", 8<<10) },
		"selector.tags[0]":     func(q *instance.Query) { q.Tags = []string{strings.Repeat("1", 8<<10)} },
		"selector.tags":        func(q *instance.Query) { q.Tags = make([]string, 65) },
		"selector.zone":        func(q *instance.Query) { q.Zone = "\xff" },
		"selector.status":      func(q *instance.Query) { q.Statuses = []instance.Status{6} },
	} {
		bad := q
		change(&bad)
		_, err := Question(bad)
		require.ErrorIs(t, err, fault.Invalid, field)
		require.Equal(t, field, fault.FieldOf(err))
		if b, err := proto.Marshal(bad.Proto()); err == nil {
			_, err = ParseQuestion(b)
			require.Equal(t, field, fault.FieldOf(err))
		}
	}
	_, err = ParseQuestion([]byte{0xff})
	require.ErrorIs(t, err, fault.Unauthentic)
}

// A Counter counts readable, selected instances, and names the service of a
// selector it cannot read.
func TestCounter(t *testing.T) {
	q := instance.Query{Name: instance.Name{Namespace: "default", Service: "s"}, Selector: instance.Selector{Tags: []string{"x"}}}
	b, err := Question(q)
	require.NoError(t, err)
	namespace, service, counts, err := Counter(b)
	require.NoError(t, err)
	require.Equal(t, []string{"default", "s"}, []string{namespace, service})
	i := &instance.Instance{Key: instance.Key{Namespace: "default", Service: "s", ID: "a"}, Spec: instance.Spec{Host: "h", Port: 1, Tags: []string{"x"}}, Status: instance.StatusUp}
	require.True(t, counts(i.Marshal()))
	i.Status = instance.StatusDown
	require.False(t, counts(i.Marshal()))
	require.False(t, counts([]byte{0xff}))

	q.Version = "?"
	b, err = proto.Marshal(q.Proto())
	require.NoError(t, err)
	_, service, _, err = Counter(b)
	require.Equal(t, "selector.version", fault.FieldOf(err))
	require.Equal(t, "s", service)
}
