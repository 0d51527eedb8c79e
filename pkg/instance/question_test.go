package instance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestQuestion(t *testing.T) {
	q := Query{
		Name: Name{Namespace: "default", Service: "s"},
		Selector: Selector{
			Statuses: []Status{StatusUp, StatusStarting}, ID: "i", Zone: "z", Version: "1.x", Tags: []string{"t"}, Environment: "e", Dependency: "d",
		},
	}
	b, err := q.Question()
	require.NoError(t, err)
	got, err := ParseQuestion(b)
	require.NoError(t, err)
	require.Equal(t, q, got)
	for field, change := range map[string]func(*Query){
		"namespace":            func(q *Query) { q.Namespace = "" },
		"service":              func(q *Query) { q.Service = "a b" },
		"selector.prefer_zone": func(q *Query) { q.PreferZone = "z" },
		"selector.version":     func(q *Query) { q.Version = strings.Repeat("1", 8<<10) },
		"selector.tags[0]":     func(q *Query) { q.Tags = []string{strings.Repeat("1", 8<<10)} },
		"selector.tags":        func(q *Query) { q.Tags = make([]string, 65) },
		"selector.zone":        func(q *Query) { q.Zone = "\xff" },
		"selector.status":      func(q *Query) { q.Statuses = []Status{statuses} },
	} {
		bad := q
		change(&bad)
		_, err := bad.Question()
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
	q := Query{Name: Name{Namespace: "default", Service: "s"}, Selector: Selector{Tags: []string{"x"}}}
	b, err := q.Question()
	require.NoError(t, err)
	namespace, service, counts, err := Counter(b)
	require.NoError(t, err)
	require.Equal(t, []string{"default", "s"}, []string{namespace, service})
	i := &Instance{Key: Key{Namespace: "default", Service: "s", ID: "a"}, Spec: Spec{Host: "h", Port: 1, Tags: []string{"x"}}, Status: StatusUp}
	require.True(t, counts(i.Marshal()))
	i.Status = StatusDown
	require.False(t, counts(i.Marshal()))
	require.False(t, counts([]byte{0xff}))

	q.Version = "?"
	b, err = proto.Marshal(q.Proto())
	require.NoError(t, err)
	_, service, _, err = Counter(b)
	require.Equal(t, "selector.version", fault.FieldOf(err))
	require.Equal(t, "s", service)
}
