package dialect_test

import (
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// texts generates strings with characters that JSON escapes, and names of fields.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "version", "weight", "zone", "tags", "dependencies", "description", "environment", "owner", "region", "<&>", "\"\\", "\u2028", "\xff", "\x00\n"}),
		rapid.String(),
	)
}

func lists() *rapid.Generator[[]string] { return rapid.SliceOfN(texts(), 0, 3) }

func maps() *rapid.Generator[map[string]string] { return rapid.MapOfN(texts(), texts(), 0, 5) }

// anyInstance generates valid and invalid instances: rendering does not depend on validity.
func anyInstance() *rapid.Generator[*instance.Instance] {
	return rapid.Custom(func(t *rapid.T) *instance.Instance {
		return &instance.Instance{
			Key: instance.Key{
				Namespace: rapid.SampledFrom([]string{"default", "blue"}).Draw(t, "namespace"),
				Service:   texts().Draw(t, "service"), ID: texts().Draw(t, "id"),
			},
			Spec: instance.Spec{
				Host: texts().Draw(t, "host"), Port: rapid.IntRange(0, 65535).Draw(t, "port"), Version: texts().Draw(t, "version"),
				Interfaces: maps().Draw(t, "interfaces"), Metadata: maps().Draw(t, "metadata"), Tags: lists().Draw(t, "tags"),
				Dependencies: lists().Draw(t, "dependencies"), Environment: texts().Draw(t, "environment"), Region: texts().Draw(t, "region"),
				Owner: texts().Draw(t, "owner"), Description: texts().Draw(t, "description"), Zone: texts().Draw(t, "zone"), Weight: rapid.IntRange(0, 100).Draw(t, "weight"),
			},
			Status:       instance.Status(rapid.IntRange(0, 5).Draw(t, "status")),
			RegisteredAt: times().Draw(t, "registered"),
			Revision:     rapid.Uint64().Draw(t, "revision"),
		}
	})
}

func times() *rapid.Generator[time.Time] {
	return rapid.Map(rapid.Int64Range(0, 4e18), func(ns int64) time.Time { return time.Unix(0, ns) })
}

// TestList checks the exact text of a list and of the changes of a watch.
func TestList(t *testing.T) {
	i := &instance.Instance{
		Key: instance.Key{Namespace: "blue", Service: "payment", ID: "p"}, Status: instance.StatusUp, Revision: 7,
		Spec: instance.Spec{
			Host: "10.0.0.1", Port: 80, Version: "1.0.0", Zone: "z", Weight: 7, Metadata: map[string]string{"b": "<&>", "a": "x"},
			Interfaces: map[string]string{"REST": "http://x"}, Tags: []string{"b", "a"}, Dependencies: []string{"db"}, Environment: "e", Region: "r", Owner: "o", Description: "d",
		},
	}
	const brief = `{"id":"p","host":"10.0.0.1","port":80,"health":"UP","metadata":{"a":"x","b":"\u003c\u0026\u003e","version":"1.0.0","weight":7,"zone":"z"},` +
		`"interfaces":{"REST":"http://x"},"tags":["b","a"],"dependencies":["db"],"environment":"e","region":"r","owner":"o","description":"d"}`
	require.Equal(t, `{"service":"payment","index":9,"instances":[`+brief+`,{"id":"q","health":"UNKNOWN","metadata":{}}]}`,
		string(dialect.AppendList(nil, "payment", &instance.View{Index: 9, Instances: []*instance.Instance{i, {Key: instance.Key{ID: "q"}}}})))
	require.Equal(t, `{"service":"payment","index":9,"instances":[]}`, string(dialect.AppendList(nil, "payment", &instance.View{Index: 9})))
	batch := instance.Batch{Index: 9}
	for n, name := range []string{"ADDED", "MODIFIED", "DELETED"} {
		batch.Events = append(batch.Events, instance.Event{Type: instance.EventType(n + 1), Instance: i, Revision: 8})
		require.Equal(t, `{"index":9,"events":[{"type":"`+name+`","instance":`+brief+`,"revision":8}]}`,
			render(t, dialect.ChangesOf(instance.Batch{Index: 9, Events: batch.Events[n:]})))
	}
	last := time.Unix(1, 2e6)
	i.RegisteredAt = time.Unix(1, 1e6)
	require.Equal(t, `{"name":"payment","id":"p","version":"1.0.0","interfaces":{"REST":"http://x"},"metadata":{"a":"x","b":"\u003c\u0026\u003e",`+
		`"dependencies":["db"],"description":"d","environment":"e","owner":"o","region":"r","tags":["b","a"]},"status":"up",`+
		`"last_heartbeat":"1970-01-01T00:00:01.002Z","registered_at":"1970-01-01T00:00:01.001Z","namespace":"blue","host":"10.0.0.1","port":80,"zone":"z","weight":7}`,
		service(i, last))
	bare := &instance.Instance{Key: instance.Key{Namespace: "default", Service: "s", ID: "q"}, RegisteredAt: last}
	require.Equal(t, `{"name":"s","id":"q","version":"","interfaces":{},"metadata":{"dependencies":[],"tags":[]},"status":"unknown","registered_at":"1970-01-01T00:00:01.002Z"}`,
		service(bare, time.Time{}))
	require.Equal(t, "["+service(i, last)+","+service(bare, time.Time{})+"]", string(dialect.AppendServices(nil, &instance.View{Index: 9, Instances: []*instance.Instance{bare, i, bare}}, 1, 3,
		func(k instance.Key) (time.Time, bool) { return last, k == i.Key })))
}

// service renders an instance in SAP-044. A zero last is unknown.
func service(i *instance.Instance, last time.Time) string {
	return string(dialect.AppendService(nil, i, func(instance.Key) (time.Time, bool) { return last, !last.IsZero() }))
}

func render(t require.TestingT, v any) string {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// TestRenderAny: any instance, valid or not, has a JSON form in both dialects.
func TestRenderAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := anyInstance().Draw(t, "instance")
		for _, text := range []string{render(t, instances.Brief(i)), render(t, instances.Detail(i, time.Time{})), service(i, i.RegisteredAt)} {
			var got struct{ ID string }
			require.NoError(t, json.Unmarshal([]byte(text), &got))
			require.Equal(t, strings.ToValidUTF8(i.ID, "\ufffd"), got.ID)
		}
	})
}

// TestRoundTrip: a received instance registers the same instance again.
func TestRoundTrip(t *testing.T) {
	first, err := dialect.Parse([]byte(`{"id":"p","host":"10.0.0.1","port":1,"metadata":{"version":"1.0.0","zone":"z","weight":7,"n":1.50,"t":true,"s":"<x>"},"tags":["b","a"]}`), instance.Name{Service: "s"})
	require.NoError(t, err)
	require.NoError(t, first.Normalize())
	require.Equal(t, map[string]string{"n": "1.50", "t": "true", "s": "<x>"}, first.Spec.Metadata)
	require.Equal(t, 30*time.Second, first.Spec.RemoveAfter)
	i := &instance.Instance{Key: first.Key, Spec: first.Spec}
	text := []byte(render(t, instances.Brief(i)))
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	delete(fields, "health")
	text, err = json.Marshal(fields)
	require.NoError(t, err)
	again, err := dialect.Parse(text, instance.Name{Service: "s"})
	require.NoError(t, err)
	require.NoError(t, again.Normalize())
	require.True(t, again.Spec.Equal(first.Spec))

	i.Spec.Interfaces = map[string]string{"REST": "http://x"}
	b, err := dialect.ParseService([]byte(service(i, time.Time{})), "")
	require.NoError(t, err)
	require.NoError(t, b.Normalize())
	require.Equal(t, []any{i.Spec.Host, i.Spec.Port, i.Spec.Version, i.Spec.Zone, i.Spec.Weight, i.Spec.Metadata, i.Spec.Tags, i.Spec.Interfaces},
		[]any{b.Spec.Host, b.Spec.Port, b.Spec.Version, b.Spec.Zone, b.Spec.Weight, b.Spec.Metadata, b.Spec.Tags, b.Spec.Interfaces})
}

// hosted adds a host to an object.
func hosted(text string) []byte {
	if text == "{}" {
		return []byte(`{"host":"h"}`)
	}
	return []byte(`{"host":"h",` + text[1:])
}

func TestThresholds(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		`{}`:                                     {0, 30 * time.Second}, // the zero value is the noun's default
		`{"unhealthy_after":"10s"}`:              {10 * time.Second, 10 * time.Second},
		`{"unhealthy_after":10}`:                 {10 * time.Second, 10 * time.Second},
		`{"unhealthy_after":1.5}`:                {1500 * time.Millisecond, 1500 * time.Millisecond},
		`{"remove_after":"1m"}`:                  {0, time.Minute},
		`{"unhealthy_after":1,"remove_after":2}`: {time.Second, 2 * time.Second},
		`{"unhealthy_after":null}`:               {0, 30 * time.Second},
	} {
		r, err := dialect.Parse(hosted(text), instance.Name{Service: "s"})
		require.NoError(t, err)
		require.Equal(t, want, [2]time.Duration{r.Spec.UnhealthyAfter, r.Spec.RemoveAfter}, text)
	}
	for _, text := range []string{`{"remove_after":"x"}`, `{"remove_after":[]}`, `{"remove_after":1e300}`, `{"remove_after":-1e300}`} {
		_, err := dialect.Parse([]byte(text), instance.Name{Service: "s"})
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "remove_after"}, text)
	}
}

func TestLiftedFieldsMustNotDiffer(t *testing.T) {
	for _, one := range []struct{ text, field string }{
		{`{"version":"1.0.0","metadata":{"version":"1.0.1"}}`, "metadata.version"},
		{`{"zone":"a","metadata":{"zone":"b"}}`, "metadata.zone"},
		{`{"weight":1,"metadata":{"weight":2}}`, "metadata.weight"},
		{`{"metadata":{"weight":0}}`, "metadata.weight"},
		{`{"metadata":{"weight":1.5}}`, "metadata.weight"},
	} {
		_, err := dialect.Parse(hosted(one.text), instance.Name{Service: "s"})
		require.Equal(t, one.field, fault.FieldOf(err), one.text)
	}
	r, err := dialect.Parse(hosted(`{"version":"1.0.0","zone":"a","weight":2,"metadata":{"version":"1.0.0","zone":"a","weight":"2"}}`), instance.Name{Service: "s"})
	require.NoError(t, err)
	require.Equal(t, []any{"1.0.0", "a", 2, 0}, []any{r.Spec.Version, r.Spec.Zone, r.Spec.Weight, len(r.Spec.Metadata)})
}

func TestRenamed(t *testing.T) {
	for field, want := range map[string]string{
		"service": "name", "tags[2]": "metadata.tags[2]", "tags": "metadata.tags", "dependencies[0]": "metadata.dependencies[0]", "owner": "metadata.owner",
		"version": "version", "metadata.tags": "metadata.tags", "host": "host", "id": "id", "": "",
	} {
		err := dialect.Renamed(fault.Wrap("a.B", &fault.Error{Kind: fault.Unprocessable, Field: field, Value: 7, Err: io.EOF}))
		require.Equal(t, want, fault.FieldOf(err))
		require.Equal(t, fault.Unprocessable, fault.KindOf(err))
		if field != "" {
			require.Equal(t, 7, fault.ValueOf(err))
		}
	}
	require.NoError(t, dialect.Renamed(nil))
}

func TestQuery(t *testing.T) {
	q, err := dialect.Query(nil, "s")
	require.NoError(t, err)
	require.Equal(t, instance.Query{Name: instance.Name{Namespace: "default", Service: "s"}}, q)
	q, err = dialect.Query(url.Values{"health": {"any"}, "tags": {"a,b:c"}, "namespace": {"blue"}, "consistency": {"linearizable"}}, "s")
	require.NoError(t, err)
	require.Equal(t, instance.Query{
		Name: instance.Name{Namespace: "blue", Service: "s"}, Selector: instance.Selector{AnyStatus: true, Tags: []string{"a", "b:c"}}, Consistency: instance.Linearizable,
	}, q)
	for _, name := range dialect.SelectorParameters() {
		require.NotEmpty(t, name)
	}
	s, err := dialect.Statuses("up,down")
	require.NoError(t, err)
	require.Equal(t, []instance.Status{instance.StatusUp, instance.StatusDown, instance.StatusOutOfService}, s.Statuses)
}

func TestTargets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(anyInstance(), 0, 4).Draw(t, "instances")
		var got []struct {
			Targets []string
			Labels  map[string]string
		}
		require.NoError(t, json.Unmarshal([]byte(render(t, dialect.Targets(list))), &got))
		list = slices.DeleteFunc(list, func(i *instance.Instance) bool { return i.Spec.Host == "" || i.Spec.Port == 0 })
		require.Len(t, got, len(list))
		for n := range got {
			require.Len(t, got[n].Targets, 1)
			for label, value := range got[n].Labels {
				require.Regexp(t, "^[a-zA-Z_][a-zA-Z0-9_]*$", label)
				require.NotEmpty(t, value)
			}
		}
	})
}

// FuzzParse: each text gives an instance or an error with a field.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		`{"id":"p","host":"10.0.0.1","port":1,"metadata":{"version":"1.0.0","weight":7}}`, `{"health_check":{"type":"HTTP","interval":"1s","endpoint":80}}`,
		`{"name":"a","version":"1.0.0","interfaces":{"REST":"x"},"metadata":{"tags":["a"]}}`, `{"metadata":{"a":[1]}}`, `[]`, ``, `{"a":1}{}`, `null`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func() (instance.Registration, error){
			func() (instance.Registration, error) { return dialect.Parse(text, instance.Name{Service: "s"}) },
			func() (instance.Registration, error) { return dialect.ParseService(text, "") },
		} {
			r, err := parse()
			if err == nil {
				err = r.Normalize()
			}
			switch kind := fault.KindOf(err); {
			case err == nil:
				i := &instance.Instance{Key: r.Key, Spec: r.Spec}
				require.NotEmpty(t, render(t, instances.Brief(i)))
				require.NotEmpty(t, service(i, time.Time{}))
			case kind == fault.TooLarge:
			default:
				require.Contains(t, []fault.Kind{fault.Invalid, fault.Unprocessable}, kind, err)
				require.NotEmpty(t, fault.FieldOf(err), err)
			}
		}
	})
}

// thousand returns instances as in the benchmarks of the front ends.
func thousand() []*instance.Instance {
	list := make([]*instance.Instance, 1000)
	for n := range list {
		list[n] = &instance.Instance{Key: instance.Key{ID: "payment-1"}, Spec: instance.Spec{
			Host: "10.0.1.1", Port: 8080, Version: "2.1.0", Zone: "us-east-1a", Weight: 5, Metadata: map[string]string{"team": "payments"}, Tags: []string{"v2"},
		}}
	}
	return list
}

// BenchmarkList renders 1,000 instances after a change of one of them.
func BenchmarkList(b *testing.B) {
	list := thousand()
	v := &instance.View{Index: 1, Instances: list}
	none := func(instance.Key) (time.Time, bool) { return time.Time{}, false }
	for name, appendTo := range map[string]func([]byte, *instance.View) []byte{
		"a": func(dst []byte, v *instance.View) []byte { return dialect.AppendList(dst, "payment", v) },
		"b": func(dst []byte, v *instance.View) []byte {
			return dialect.AppendServices(dst, v, 0, len(v.Instances), none)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for n := 0; b.Loop(); n++ {
				list = slices.Clone(list)
				changed := *list[n%len(list)]
				list[n%len(list)] = &changed
				v = v.Next(v.Index+1, list)
				dst = appendTo(dst[:0], v)
			}
		})
	}
}

// BenchmarkListNew renders 1,000 instances for the first time.
func BenchmarkListNew(b *testing.B) {
	list := thousand()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = dialect.AppendList(dst[:0], "payment", &instance.View{Index: 1, Instances: list})
	}
}

// TestTargetsOfStrangers: metadata that is no port, path or scheme changes nothing of what Prometheus asks.
func TestTargetsOfStrangers(t *testing.T) {
	for _, text := range []string{"null", "[]", "0", "-1", "80/evil", "65536", "http://evil.example/", "//evil.example/", "relative", "javascript", "\x00", "%zz"} {
		got := dialect.Targets([]*instance.Instance{{
			Key:  instance.Key{Namespace: "default", Service: "web", ID: "w"},
			Spec: instance.Spec{Host: "192.0.2.1", Port: 80, Metadata: map[string]string{"metrics_port": text, "metrics_path": text, "metrics_scheme": text}},
		}})
		require.Equal(t, []string{"192.0.2.1:80"}, got[0].Targets, text)
		require.NotContains(t, got[0].Labels, "__metrics_path__", text)
		require.NotContains(t, got[0].Labels, "__scheme__", text)
	}
}
