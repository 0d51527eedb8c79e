package instance

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

func TestMarshalKeepsEverything(t *testing.T) {
	for _, change := range []func(*Registration){
		nil,
		func(r *Registration) {
			*r = Registration{Key: Key{Service: "a", ID: "b"}, Spec: Spec{Host: "h", Port: 1}}
		},
	} {
		i := built(t, change)
		got, err := Unmarshal(i.Marshal())
		require.NoError(t, err)
		require.Equal(t, i, got)
		require.True(t, i.Same(got))
	}
	none := built(t, nil)
	none.RegisteredAt, none.Lease, none.Peer, none.Principal, none.Revision = time.Time{}, "", "", "", 0
	got, err := Unmarshal(none.Marshal())
	require.NoError(t, err)
	require.Equal(t, none, got)
}

// TestEveryFieldTravels clears each field of the message in turn: the instance
// must differ, so that neither the codec nor Same misses a new field.
func TestEveryFieldTravels(t *testing.T) {
	i := built(t, nil)
	i.Override = StatusOutOfService
	p := i.whole()
	fields := p.ProtoReflect().Descriptor().Fields()
	for n := range fields.Len() {
		field := fields.Get(n)
		if field.Name() == "last_heartbeat" {
			require.False(t, p.ProtoReflect().Has(field))
			continue
		}
		require.True(t, p.ProtoReflect().Has(field), "%s is set", field.Name())
		changed := proto.Clone(p).(*agentv1.Instance)
		changed.ProtoReflect().Clear(field)
		got, err := FromProto(changed)
		if err != nil {
			continue // required
		}
		if field.Name() == "revision" {
			require.True(t, i.Same(got))
			continue
		}
		require.Equal(t, field.Name() == "unhealthy_after" || field.Name() == "remove_after", i.Same(got), "%s", field.Name())
	}
}

func TestFromProtoRefuses(t *testing.T) {
	for field, change := range map[string]func(*agentv1.Instance){
		"id":                    func(p *agentv1.Instance) { p.Id = "" },
		"service":               func(p *agentv1.Instance) { p.ServiceName = "a/b" },
		"registered_at":         func(p *agentv1.Instance) { p.RegisteredAt = &timestamppb.Timestamp{Nanos: -1} },
		"lease_id":              func(p *agentv1.Instance) { p.LeaseId = "a\nb" },
		"peer":                  func(p *agentv1.Instance) { p.Peer = string(bytes.Repeat([]byte("a"), 129)) },
		"unhealthy_after":       func(p *agentv1.Instance) { p.UnhealthyAfter = &durationpb.Duration{Seconds: math.MaxInt64} },
		"remove_after":          func(p *agentv1.Instance) { p.RemoveAfter = &durationpb.Duration{Seconds: 1, Nanos: -1} },
		"health_check.interval": func(p *agentv1.Instance) { p.HealthCheck.Interval = &durationpb.Duration{Seconds: -1} },
		"health_check.timeout":  func(p *agentv1.Instance) { p.HealthCheck.Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1} },
	} {
		p := proto.Clone(built(t, nil).whole()).(*agentv1.Instance)
		change(p)
		_, err := FromProto(p)
		require.ErrorIs(t, err, fault.Invalid, field)
		require.Equal(t, field, fault.FieldOf(err))
	}
	_, err := Unmarshal(make([]byte, MaxSize+1))
	require.ErrorIs(t, err, fault.TooLarge)
	_, err = Unmarshal([]byte{0xff})
	require.ErrorIs(t, err, fault.Unauthentic)
	_, err = FromProto(nil)
	require.ErrorIs(t, err, fault.Invalid)
}

// An instance with a status of a later version exists, and its status is unknown. Left out, it would be missing
// in the answers of older peers.
func TestStatusOfALaterVersion(t *testing.T) {
	for _, change := range []func(*agentv1.Instance){
		func(p *agentv1.Instance) { p.Health = 99 },
		func(p *agentv1.Instance) { p.Override = 99 },
		func(p *agentv1.Instance) { p.Override = -1 },
	} {
		p := proto.Clone(built(t, nil).whole()).(*agentv1.Instance)
		change(p)
		got, err := FromProto(p)
		require.NoError(t, err)
		require.Equal(t, StatusUnknown, got.Status)
		require.Equal(t, StatusUnknown, got.Override)
	}
}

// A peer that adopts an instance of a later version passes on the fields that it does not know: it registers the Spec.
func TestFieldsOfALaterVersionStay(t *testing.T) {
	p := built(t, nil).whole()
	p.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "of tomorrow"))
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	require.NoError(t, err)
	got, err := Unmarshal(data)
	require.NoError(t, err)
	require.Equal(t, data, got.Marshal())

	r := Registration{Key: got.Key, Spec: got.Spec}
	require.NoError(t, r.Normalize())
	adopted := *got
	adopted.Spec, adopted.Peer = r.Spec, "another"
	require.Equal(t, p.ProtoReflect().GetUnknown(), adopted.whole().ProtoReflect().GetUnknown())
	require.False(t, got.Spec.Equal(built(t, nil).Spec), "a new registration replaces them")

	p.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, MaxSize)))
	_, err = FromProto(p)
	require.ErrorIs(t, err, fault.TooLarge)
}

// A health check keeps the fields of a later version. One of a later type is kept as a whole, and this version does not
// run it.
func TestHealthCheckOfALaterVersionStays(t *testing.T) {
	later := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "of tomorrow")
	for name, change := range map[string]func(*agentv1.HealthCheck){
		"field":          func(c *agentv1.HealthCheck) { c.ProtoReflect().SetUnknown(later) },
		"type":           func(c *agentv1.HealthCheck) { c.Type = "QUIC" },
		"type and field": func(c *agentv1.HealthCheck) { c.Type = "QUIC"; c.ProtoReflect().SetUnknown(later) },
	} {
		t.Run(name, func(t *testing.T) {
			full := full()
			p := (&Instance{Key: full.Key, Spec: full.Spec}).whole()
			change(p.HealthCheck)
			data, err := proto.Marshal(p)
			require.NoError(t, err)
			got, err := Unmarshal(data)
			require.NoError(t, err)
			require.Equal(t, name == "field", got.Spec.Check != nil)

			adopted := Registration{Key: got.Key, Spec: got.Spec}
			require.NoError(t, adopted.Normalize())
			again := (&Instance{Key: got.Key, Spec: adopted.Spec}).Marshal()
			var kept agentv1.Instance
			require.NoError(t, proto.Unmarshal(again, &kept))
			require.True(t, proto.Equal(p.HealthCheck, kept.HealthCheck), "%v, not %v", kept.HealthCheck, p.HealthCheck)
			read, err := Unmarshal(again)
			require.NoError(t, err)
			require.Equal(t, again, read.Marshal(), "a second adoption changes nothing")
		})
	}
}

func TestRegistrationFromProto(t *testing.T) {
	want := full()
	p := (&Instance{Key: want.Key, Spec: want.Spec, Status: want.Status, Lease: "lease", Peer: "peer"}).whole()
	p.Note = "applications write none"
	got, err := RegistrationFromProto(p)
	require.NoError(t, err)
	require.Equal(t, want, got)
	p.Health = agentv1.HealthStatus_HEALTH_STATUS_UP
	got, err = RegistrationFromProto(p)
	require.NoError(t, err)
	require.Equal(t, StatusUnknown, got.Status, "read-only to applications")
}

func registrations() *rapid.Generator[Registration] {
	text := rapid.StringMatching(`[a-zé ]{0,9}`)
	label := rapid.StringMatching(`[a-z0-9-]{1,9}`)
	return rapid.Custom(func(t *rapid.T) Registration {
		r := Registration{
			Key: Key{Namespace: label.Draw(t, "namespace"), Service: label.Draw(t, "service"), ID: rapid.StringMatching(`[A-Za-z0-9_:-]{1,20}`).Draw(t, "id")},
			Spec: Spec{
				Host:         rapid.SampledFrom([]string{"10.0.0.1", "::1", "example.org", ""}).Draw(t, "host"),
				Port:         rapid.IntRange(1, 65535).Draw(t, "port"),
				Version:      rapid.SampledFrom([]string{"", "1.2.3", "1.0.0-rc.1+x"}).Draw(t, "version"),
				Interfaces:   rapid.MapOfN(label, label, 0, 3).Draw(t, "interfaces"),
				Metadata:     rapid.MapOfN(label, text, 0, 5).Draw(t, "metadata"),
				Tags:         rapid.SliceOfN(label, 0, 5).Draw(t, "tags"),
				Dependencies: rapid.SliceOfN(label, 0, 5).Draw(t, "dependencies"),
				Environment:  rapid.SampledFrom([]string{"", "staging"}).Draw(t, "environment"),
				Description:  text.Draw(t, "description"),
				Weight:       rapid.IntRange(0, 100).Draw(t, "weight"),
			},
		}
		if r.Spec.Host == "" {
			r.Spec.Port, r.Spec.Interfaces = 0, map[string]string{"CLI": "x"}
		}
		if rapid.Bool().Draw(t, "offers") {
			r.Spec.Offer = json.RawMessage(`{"a": 1}`)
		}
		if r.Spec.Host != "" && rapid.Bool().Draw(t, "checked") {
			r.Spec.Check = &Check{Type: TCP, Interval: time.Duration(rapid.IntRange(1, 3600).Draw(t, "interval")) * time.Second}
		}
		if rapid.Bool().Draw(t, "thresholds") {
			r.Spec.UnhealthyAfter = time.Duration(rapid.Int64Range(int64(MinTTL), int64(MaxTTL)).Draw(t, "unhealthy"))
		}
		return r
	})
}

// TestNormalFormIsOne checks that Normalize is idempotent and that decoding
// returns the encoded instance, for any order of lists.
func TestNormalFormIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := registrations().Draw(t, "registration")
		shuffled := r
		shuffled.Spec.Tags, shuffled.Spec.Metadata = slices.Clone(r.Spec.Tags), maps.Clone(r.Spec.Metadata)
		slices.Reverse(shuffled.Spec.Tags)
		if r.ID == "watch" || r.ID == "instances" {
			t.Skip()
		}
		require.NoError(t, r.Normalize())
		again := r
		require.NoError(t, again.Normalize())
		require.Equal(t, r, again)
		require.NoError(t, shuffled.Normalize())
		require.Equal(t, r, shuffled)

		i := &Instance{Key: r.Key, Spec: r.Spec, Status: StatusUp}
		data := i.Marshal()
		got, err := Unmarshal(data)
		require.NoError(t, err)
		require.Equal(t, i, got)
		require.Equal(t, data, got.Marshal())
		require.LessOrEqual(t, len(data), MaxSize)
		require.LessOrEqual(t, len(data), most(&r.Key, &r.Spec))
	})
}

func TestSame(t *testing.T) {
	i := built(t, nil)
	require.True(t, (*Instance)(nil).Same(nil))
	require.False(t, i.Same(nil))
	require.False(t, (*Instance)(nil).Same(i))
	other := *i
	other.Revision++
	require.True(t, i.Same(&other))
	other.RegisteredAt = i.RegisteredAt.In(time.FixedZone("", 3600))
	require.True(t, i.Same(&other), "one moment")
	other.Lease = "x"
	require.False(t, i.Same(&other))
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(built(f, nil).Marshal())
	f.Add(built(f, func(r *Registration) { r.Spec.Check, r.Spec.Offer = nil, nil }).Marshal())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := Unmarshal(data)
		if err != nil {
			return
		}
		again, err := Unmarshal(i.Marshal())
		require.NoError(t, err)
		require.True(t, i.Same(again))
		require.Equal(t, i.Revision, again.Revision)
		for _, s := range []Selector{{}, {AnyStatus: true, Version: "*", Tags: []string{"a:b"}}} {
			compile(t, s).Match(i)
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	i := built(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		i.Marshal()
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	data := built(b, nil).Marshal()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Unmarshal(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	i := built(b, nil)
	m := compile(b, Selector{Version: "2.x", Tags: []string{"core", "team:payments"}, Zone: "eu-1a"})
	b.ReportAllocs()
	for b.Loop() {
		m.Match(i)
	}
}

// TestCallersSeeNoLease: the form for callers is the whole one without the lease and the name of the caller who registered.
func TestCallersSeeNoLease(t *testing.T) {
	i := built(t, nil)
	require.NotEmpty(t, i.Lease)
	require.NotEmpty(t, i.Principal)
	shown, whole := i.Proto(), i.whole()
	require.Empty(t, shown.GetLeaseId()+shown.GetPrincipal()+shown.GetNote())
	whole.LeaseId, whole.Principal, whole.Note = "", "", ""
	require.True(t, proto.Equal(whole, shown))
}
