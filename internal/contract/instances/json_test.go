package instances_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func parseJSON(t *testing.T, text string) (instance.Registration, error) {
	t.Helper()
	var j instances.RegistrationJSON
	require.NoError(t, json.Unmarshal([]byte(text), &j))
	return j.Registration(instance.Name{Service: "web"})
}

func TestRegistrationJSON(t *testing.T) {
	r, err := parseJSON(t, `{"id":"a","host":"10.0.0.1","port":80,"tags":["x"],"status":"starting",
		"metadata":{"weight":7,"version":"1.2.3","zone":"eu","up":true,"none":null,"n":1e3},
		"health_check":{"type":"http","endpoint":8080,"interval":"10s","timeout":0.5},"unhealthy_after":30,"offer":null}`)
	require.NoError(t, err)
	require.Equal(t, instance.Registration{
		Key: instance.Key{Namespace: "default", Service: "web", ID: "a"},
		Spec: instance.Spec{
			Host: "10.0.0.1", Port: 80, Version: "1.2.3", Zone: "eu", Weight: 7, Tags: []string{"x"},
			Metadata:       map[string]string{"up": "true", "n": "1e3"},
			Check:          &instance.Check{Type: instance.HTTP, Endpoint: "8080", Interval: 10 * time.Second, Timeout: 500 * time.Millisecond},
			UnhealthyAfter: 30 * time.Second,
		},
		Status: instance.StatusStarting,
	}, r)
}

func TestRegistrationJSONErrors(t *testing.T) {
	for text, field := range map[string]string{
		`{"metadata":{"weight":"x"}}`:             "metadata.weight",
		`{"metadata":{"weight":2},"weight":3}`:    "metadata.weight",
		`{"metadata":{"zone":"a"},"zone":"b"}`:    "metadata.zone",
		`{"metadata":{"version":"1"},"zone":"b"}`: "",
		`{"metadata":{"b":[],"a":{}}}`:            "metadata.a",
		`{"status":"GONE"}`:                       "status",
		`{"health_check":{"type":"ping"}}`:        "health_check.type",
	} {
		_, err := parseJSON(t, text)
		require.Equal(t, field, fault.FieldOf(err), text)
	}
	for _, text := range []string{`{"unhealthy_after":"soon"}`, `{"unhealthy_after":1e10}`, `{"health_check":{"endpoint":65536}}`, `{"health_check":{"endpoint":[]}}`} {
		require.Error(t, json.Unmarshal([]byte(text), new(instances.RegistrationJSON)), text)
	}
	j := instances.RegistrationJSON{Namespace: "blue"}
	_, err := j.Registration(instance.Name{Namespace: "red"})
	require.Equal(t, "namespace", fault.FieldOf(err))
}

func TestDetailJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_700_000, time.UTC)
	i := &instance.Instance{
		Key: instance.Key{Namespace: "default", Service: "web", ID: "a"},
		Spec: instance.Spec{
			Host: "h", Port: 80, Version: "1.0.0", Zone: "eu", Weight: 2, Metadata: map[string]string{"k": "v"},
			Check: &instance.Check{Type: instance.TCP, Interval: time.Second, Timeout: time.Second, HealthyThreshold: 1, UnhealthyThreshold: 3}, UnhealthyAfter: 30 * time.Second, RemoveAfter: time.Minute,
		},
		Status: instance.StatusDown, Override: instance.StatusDown, RegisteredAt: at, Lease: "secret", Peer: "p", Revision: 9,
	}
	text, err := json.Marshal(instances.Detail(i, at))
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"a","host":"h","port":80,"health":"DOWN","metadata":{"k":"v","version":"1.0.0","weight":2,"zone":"eu"},
		"service":"web","namespace":"default","weight":2,
		"health_check":{"type":"TCP","interval":"1s","timeout":"1s","healthy_threshold":1,"unhealthy_threshold":3},
		"unhealthy_after":"30s","remove_after":"1m0s","override":"DOWN","registered_at":"2026-01-02T03:04:05.006Z",
		"last_heartbeat":"2026-01-02T03:04:05.006Z","peer":"p","revision":9}`, string(text))
	text, err = json.Marshal(instances.Brief(&instance.Instance{Key: i.Key}))
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"a","health":"UNKNOWN","metadata":{}}`, string(text))
}
