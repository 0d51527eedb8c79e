package instance

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// full is a registration with all fields set, in normal form.
func full() Registration {
	return Registration{
		Key: Key{Namespace: "prod", Service: "payment", ID: "payment-1"},
		Spec: Spec{
			Host:         "10.0.1.1",
			Port:         8080,
			Version:      "2.1.0",
			Interfaces:   map[string]string{"REST": "http://10.0.1.1:8080", "CLI": "pay"},
			Metadata:     map[string]string{"team": "payments", "canary": "true"},
			Tags:         []string{"blue", "core"},
			Dependencies: []string{"ledger", "users"},
			Environment:  "production",
			Region:       "eu-central",
			Owner:        "payments@example.org",
			Description:  "Takes money.",
			Zone:         "eu-1a",
			Weight:       50,
			Check: &Check{
				Type: HTTP, Endpoint: "/health", Interval: 10 * time.Second, Timeout: time.Second,
				HealthyThreshold: 2, UnhealthyThreshold: 3,
			},
			UnhealthyAfter: 30 * time.Second,
			RemoveAfter:    60 * time.Second,
			Lasting:        true,
			Offer:          json.RawMessage(`{"id":"pay"}`),
		},
		Status: StatusStarting,
	}
}

// built returns the instance of a changed full registration.
func built(t require.TestingT, change func(*Registration)) *Instance {
	r := full()
	if change != nil {
		change(&r)
	}
	r.Spec.Note = "of a front"
	require.NoError(t, r.Normalize())
	return &Instance{
		Key: r.Key, Spec: r.Spec, Status: StatusUp, Override: StatusUnknown,
		RegisteredAt: time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC),
		Lease:        "lease-00112233445566778899aabbccddeeff", Peer: "12D3KooW", Principal: "@web", Revision: 7,
	}
}

func TestNormalizeKeepsWhatIsNormal(t *testing.T) {
	r := full()
	require.NoError(t, r.Normalize())
	require.Equal(t, full(), r)
}

func TestNormalizeFillsDefaults(t *testing.T) {
	r := Registration{Key: Key{Service: "a"}, Spec: Spec{Host: "::ffff:10.0.0.1", Port: 1, Tags: []string{"b", "a", "b"}, Check: &Check{Type: "grpc"}}}
	tags, check := r.Spec.Tags, r.Spec.Check
	require.NoError(t, r.Normalize())
	require.Equal(t, Key{Namespace: "default", Service: "a"}, r.Key)
	require.Equal(t, "10.0.0.1", r.Spec.Host)
	require.Equal(t, []string{"a", "b"}, r.Spec.Tags)
	require.Equal(t, 1, r.Spec.Weight)
	require.Equal(t, 30*time.Second, r.Spec.UnhealthyAfter)
	require.Equal(t, 60*time.Second, r.Spec.RemoveAfter)
	require.Equal(t, Check{
		Type: GRPC, Interval: 10 * time.Second, Timeout: 5 * time.Second, HealthyThreshold: 1, UnhealthyThreshold: 3,
	}, *r.Spec.Check)
	require.Equal(t, []string{"b", "a", "b"}, tags, "the caller's list")
	require.Equal(t, Check{Type: "grpc"}, *check, "the caller's check")
}

func TestThresholdsFitEachOther(t *testing.T) {
	for _, c := range []struct {
		name              string
		unhealthy, remove time.Duration
		interval          time.Duration
		wantU, wantR      time.Duration
		lasting           bool
	}{
		{name: "none", wantU: 30 * time.Second, wantR: 60 * time.Second, lasting: true},
		{name: "never", remove: Never, wantU: 30 * time.Second, wantR: Never},
		{name: "remove alone", remove: 30 * time.Second, wantU: 30 * time.Second, wantR: 30 * time.Second},
		{name: "short", remove: 5 * time.Second, wantU: 5 * time.Second, wantR: 5 * time.Second},
		{name: "long", unhealthy: time.Minute, wantU: time.Minute, wantR: 2 * time.Minute, lasting: true},
		{name: "longest", unhealthy: MaxTTL, wantU: MaxTTL, wantR: MaxTTL, lasting: true},
		{name: "rare checks", interval: time.Hour, wantU: 3 * time.Hour, wantR: 6 * time.Hour, lasting: true},
		{name: "rare checks, soon removed", interval: time.Hour, remove: 2 * time.Hour, wantU: 2 * time.Hour, wantR: 2 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := full()
			r.Spec.UnhealthyAfter, r.Spec.RemoveAfter, r.Spec.Lasting = c.unhealthy, c.remove, false
			if c.interval != 0 {
				r.Spec.Check.Interval = c.interval
			}
			require.NoError(t, r.Normalize())
			require.Equal(t, c.wantU, r.Spec.UnhealthyAfter)
			require.Equal(t, c.wantR, r.Spec.RemoveAfter)
			require.Equal(t, c.lasting, r.Spec.Lasting)
			again := r
			require.NoError(t, again.Normalize())
			require.Equal(t, r, again)
			r.Spec.Check = nil
			require.NoError(t, r.Normalize())
			require.False(t, r.Spec.Lasting, "heartbeats alone keep it")
		})
	}
}

func texts(n int, prefix string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = prefix + strings.Repeat("x", i)
	}
	return list
}

func mapOf(keys []string) map[string]string {
	m := make(map[string]string)
	for _, k := range keys {
		m[k] = "v"
	}
	return m
}

// change breaks a registration. Lists of changes are grouped by the field of
// the error.
type change = func(*Registration)

// badAddresses are invalid addresses.
func badAddresses() map[string][]change {
	return map[string][]change{
		"namespace": {
			func(r *Registration) { r.Namespace = "Prod" },
			func(r *Registration) { r.Namespace = strings.Repeat("a", 64) },
		},
		"service": {
			func(r *Registration) { r.Service = "" },
			func(r *Registration) { r.Service = "a/b" },
			func(r *Registration) { r.Service = "a b" },
			func(r *Registration) { r.Service = "a\n" },
			func(r *Registration) { r.Service = "a\x00" },
			func(r *Registration) { r.Service = "é" },
			func(r *Registration) { r.Service = "a\xff" },
			func(r *Registration) { r.Service = ".." },
			func(r *Registration) { r.Service = strings.Repeat("a", 65) },
		},
		"id": {
			func(r *Registration) { r.ID = "a/b" },
			func(r *Registration) { r.ID = ".." },
			func(r *Registration) { r.ID = "watch" },
			func(r *Registration) { r.ID = "instances" },
			func(r *Registration) { r.ID = strings.Repeat("a", 129) },
		},
		"host": {
			func(r *Registration) { r.Spec.Host = "10.0.0.256" },
			func(r *Registration) { r.Spec.Host = "0.0.0.0" },
			func(r *Registration) { r.Spec.Host = "ff02::1" },
			func(r *Registration) { r.Spec.Host = "fe80::1%eth0" },
			func(r *Registration) { r.Spec.Host = "a..b" },
			func(r *Registration) { r.Spec.Host = "-a" },
			func(r *Registration) { r.Spec.Host = "a b" },
			func(r *Registration) { r.Spec.Host = strings.Repeat("a.", 126) + "aa" },
			func(r *Registration) { r.Spec.Host, r.Spec.Port, r.Spec.Interfaces = "", 0, nil },
		},
		"port": {
			func(r *Registration) { r.Spec.Port = 65536 },
			func(r *Registration) { r.Spec.Port = -1 },
			func(r *Registration) { r.Spec.Host = "" },
		},
	}
}

// badLists are invalid lists and maps.
func badLists() map[string][]change {
	return map[string][]change{
		"interfaces": {
			func(r *Registration) { r.Spec.Interfaces[""] = "x" },
			func(r *Registration) { r.Spec.Interfaces["a b"] = "x" },
			func(r *Registration) { r.Spec.Interfaces = mapOf(texts(17, "i")) },
		},
		"interfaces.REST": {
			func(r *Registration) { r.Spec.Interfaces["REST"] = "" },
			func(r *Registration) { r.Spec.Interfaces["REST"] = "a\nb" },
			func(r *Registration) { r.Spec.Interfaces["REST"] = strings.Repeat("a", 513) },
		},
		"metadata": {
			func(r *Registration) { r.Spec.Metadata[""] = "x" },
			func(r *Registration) { r.Spec.Metadata["\xff"] = "x" },
			func(r *Registration) { r.Spec.Metadata = mapOf(texts(65, "m")) },
		},
		"metadata.k": {
			func(r *Registration) { r.Spec.Metadata["k"] = "\xff" },
			func(r *Registration) { r.Spec.Metadata["k"] = strings.Repeat("a", 4097) },
		},
		"tags":            {func(r *Registration) { r.Spec.Tags = texts(65, "t") }},
		"tags[1]":         {func(r *Registration) { r.Spec.Tags = []string{"z", ""} }, func(r *Registration) { r.Spec.Tags = []string{"z", "a,b"} }},
		"tags[0]":         {func(r *Registration) { r.Spec.Tags = []string{" z"} }, func(r *Registration) { r.Spec.Tags = []string{"\x00"} }},
		"dependencies":    {func(r *Registration) { r.Spec.Dependencies = texts(65, "d") }},
		"dependencies[1]": {func(r *Registration) { r.Spec.Dependencies = []string{"z", "a b"} }},
	}
}

// badTexts are other invalid fields.
func badTexts() map[string][]change {
	return map[string][]change{
		"environment": {func(r *Registration) { r.Spec.Environment = "test" }},
		"region":      {func(r *Registration) { r.Spec.Region = strings.Repeat("a", 65) }},
		"owner":       {func(r *Registration) { r.Spec.Owner = "a\tb" }},
		"description": {func(r *Registration) { r.Spec.Description = strings.Repeat("é", 501) }},
		"zone":        {func(r *Registration) { r.Spec.Zone = "eu_1" }, func(r *Registration) { r.Spec.Zone = "-" }},
		"weight":      {func(r *Registration) { r.Spec.Weight = 101 }, func(r *Registration) { r.Spec.Weight = -1 }},
		"unhealthy_after": {
			func(r *Registration) { r.Spec.UnhealthyAfter = time.Millisecond },
			func(r *Registration) { r.Spec.UnhealthyAfter, r.Spec.RemoveAfter = 25*time.Hour, 26*time.Hour },
			func(r *Registration) { r.Spec.UnhealthyAfter = -time.Second },
		},
		"remove_after": {
			func(r *Registration) { r.Spec.RemoveAfter = 29 * time.Second },
			func(r *Registration) { r.Spec.RemoveAfter = 25 * time.Hour },
		},
		"offer":  {func(r *Registration) { r.Spec.Offer = json.RawMessage("{") }},
		"status": {func(r *Registration) { r.Status = StatusUp }, func(r *Registration) { r.Status = 200 }},
	}
}

// TestNamesOfConsul: services are named as users of Consul name theirs, and stay as they were written.
func TestNamesOfConsul(t *testing.T) {
	for _, name := range []string{"UserService", "com.acme.app", "my_svc", "web:80", "-", strings.Repeat("A", 64)} {
		r := full()
		r.Service, r.ID, r.Spec.Dependencies = name, name, []string{name}
		require.NoError(t, r.Normalize(), name)
		require.Equal(t, []string{name, name, name}, []string{r.Service, r.ID, r.Spec.Dependencies[0]})
		got, err := Unmarshal((&Instance{Key: r.Key, Spec: r.Spec}).Marshal())
		require.NoError(t, err)
		require.Equal(t, r.Key, got.Key)
	}
	r := full()
	r.Service = "my svc"
	require.EqualError(t, r.Normalize(), `service: contains ' ': use letters, digits and . _ : -`)
}

// TestNoPort: an instance has a port only if it listens. A check of that port needs one.
func TestNoPort(t *testing.T) {
	for _, c := range []struct {
		check *Check
		ok    bool
	}{
		{nil, true},
		{&Check{Type: Script, Endpoint: "x"}, true},
		{&Check{Type: TCP, Endpoint: "80"}, true},
		{&Check{Type: TCP, Endpoint: "10.0.1.1:80"}, true},
		{&Check{Type: HTTP, Endpoint: "http://10.0.1.1/"}, true},
		{&Check{Type: GRPC, Endpoint: "80/name"}, true},
		{&Check{Type: TCP}, false},
		{&Check{Type: HTTP}, false},
		{&Check{Type: HTTP, Endpoint: "/health"}, false},
		{&Check{Type: GRPC, Endpoint: "/name"}, false},
	} {
		r := full()
		r.Spec.Port, r.Spec.Check = 0, c.check
		if err := r.Normalize(); c.ok {
			require.NoError(t, err, c.check)
		} else {
			require.Equal(t, "health_check.endpoint", fault.FieldOf(err), c.check)
		}
	}
}

func TestNormalizeRefuses(t *testing.T) {
	for _, faults := range []map[string][]change{badAddresses(), badLists(), badTexts()} {
		for field, changes := range faults {
			for n, spoil := range changes {
				r := full()
				spoil(&r)
				before := r
				before.Spec.Interfaces, before.Spec.Metadata, before.Spec.Tags = maps.Clone(r.Spec.Interfaces), maps.Clone(r.Spec.Metadata), slices.Clone(r.Spec.Tags)
				err := r.Normalize()
				require.ErrorIs(t, err, fault.Invalid, "%s %d", field, n)
				require.Equal(t, field, fault.FieldOf(err), "%s %d", field, n)
				require.Equal(t, before, r, "%s %d: nothing changes", field, n)
			}
		}
	}
}

func TestVersionIsUnprocessable(t *testing.T) {
	for _, version := range []string{"2", "v2.0.0", "2.0", "01.0.0", "2.0.0-", "x", strings.Repeat("1", 129), "99999999999999999999.0.0"} {
		r := full()
		r.Spec.Version = version
		err := r.Normalize()
		require.ErrorIs(t, err, fault.Unprocessable, version)
		require.Equal(t, "version", fault.FieldOf(err))
	}
	for _, version := range []string{"", "1.0.0", "1.0.0-beta.1", "1.0.0+build.5"} {
		r := full()
		r.Spec.Version = version
		require.NoError(t, r.Normalize(), version)
	}
}

func TestTogetherTooLarge(t *testing.T) {
	r := full()
	for _, k := range []string{"a", "b", "c", "d"} {
		r.Spec.Metadata[k] = strings.Repeat("x", maxValue)
	}
	require.ErrorIs(t, r.Normalize(), fault.TooLarge)
	r = full()
	r.Spec.Offer = json.RawMessage(`"` + strings.Repeat("x", MaxSize) + `"`)
	require.ErrorIs(t, r.Normalize(), fault.TooLarge)
}

func TestHostNames(t *testing.T) {
	for _, host := range []string{"localhost", "a.b.example", "web_1", "127.0.0.1", "2001:db8::1", "fe80::1", "3com.example"} {
		r := full()
		r.Spec.Host = host
		require.NoError(t, r.Normalize(), host)
		require.Equal(t, host, r.Spec.Host)
	}
	r := full()
	r.Spec.Host = "2001:DB8:0::1"
	require.NoError(t, r.Normalize())
	require.Equal(t, "2001:db8::1", r.Spec.Host, "one address has one text")
}

func TestCheckEndpoints(t *testing.T) {
	for _, c := range []struct {
		kind     CheckType
		endpoint string
		ok       bool
	}{
		{HTTP, "", true},
		{HTTP, "/health?full=1", true},
		{HTTP, "http://10.0.1.1:9000/x", true},
		{HTTP, "https://[2001:db8::1]/x", true},
		{HTTP, "//10.0.1.1/x", false},
		{HTTP, "ftp://10.0.1.1/", false},
		{HTTP, "http://user:pass@10.0.1.1/", false},
		{HTTP, "http:///x", false},
		{HTTP, "http://10.0.1.1:0/", false},
		{HTTP, "health", false},
		{HTTP, "/a#b", false},
		{TCP, "", true},
		{TCP, "9000", true},
		{TCP, "10.0.1.1:9000", true},
		{TCP, "[2001:db8::1]:9000", true},
		{TCP, "10.0.1.1", false},
		{TCP, "10.0.1.1:0", false},
		{TCP, "70000", false},
		{TCP, "/x", false},
		{GRPC, "", true},
		{GRPC, "9000/my.Service", true},
		{GRPC, "/my.Service", true},
		{GRPC, "10.0.1.1:9000/my.Service", true},
		{GRPC, "x/y", false},
		{Script, "disk-space", true},
		{Script, "", false},
		{Script, "rm -rf", false},
		{Script, "../x", false},
		{HTTP, "/" + strings.Repeat("a", 256), false},
		{HTTP, "/a\x00", false},
	} {
		err := (&Check{Type: c.kind, Endpoint: c.endpoint}).Normalize()
		if c.ok {
			require.NoError(t, err, "%s %q", c.kind, c.endpoint)
			continue
		}
		require.ErrorIs(t, err, fault.Invalid, "%s %q", c.kind, c.endpoint)
		require.Equal(t, "endpoint", fault.FieldOf(err))
	}
}

func TestCheckBounds(t *testing.T) {
	for field, change := range map[string]func(*Check){
		"type":                func(c *Check) { c.Type = "ping" },
		"interval":            func(c *Check) { c.Interval = 999 * time.Millisecond },
		"timeout":             func(c *Check) { c.Timeout = c.Interval + 1 },
		"healthy_threshold":   func(c *Check) { c.HealthyThreshold = 101 },
		"unhealthy_threshold": func(c *Check) { c.UnhealthyThreshold = -1 },
	} {
		r := full()
		change(r.Spec.Check)
		require.Equal(t, field, fault.FieldOf(r.Spec.Check.Normalize()))
		require.Equal(t, "health_check."+field, fault.FieldOf(r.Normalize()))
	}
	r := full()
	r.Spec.Host, r.Spec.Port = "", 0
	require.Equal(t, "health_check.endpoint", fault.FieldOf(r.Normalize()), "nothing to check")
	r.Spec.Check.Endpoint = "http://10.0.1.1/health"
	require.NoError(t, r.Normalize())
}

func TestStatusNames(t *testing.T) {
	for s := StatusUnknown; s < statuses; s++ {
		got, err := ParseStatus(strings.ToLower(s.String()))
		require.NoError(t, err)
		require.Equal(t, s, got)
		require.Equal(t, "HEALTH_STATUS_"+s.String(), s.Proto().String())
		back, err := StatusFromProto(s.Proto())
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	for _, p := range []agentv1.HealthStatus{-1, agentv1.HealthStatus(statuses)} {
		_, err := StatusFromProto(p)
		require.Equal(t, "status", fault.FieldOf(err))
	}
	require.Equal(t, "UNKNOWN", statuses.String())
	_, err := ParseStatus("fine")
	require.Equal(t, "status", fault.FieldOf(err))
}
