package httpapi

import (
	"net/http"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func (d *discoveryAPI) status(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, d.node.Status())
}

func (d *discoveryAPI) peers(w http.ResponseWriter, _ *http.Request) error {
	peers := d.node.Peers()
	if peers == nil {
		peers = []discovery.PeerInfo{}
	}
	return writeJSON(w, http.StatusOK, map[string]any{"peers": peers})
}

// healthBody is the answer of /v1/health and /readyz. With an agent plane it includes the fields
// of SAP-044 Registry.
type healthBody struct {
	Status  string `json:"status"` // healthy, degraded (still serving) or unhealthy
	Reason  string `json:"reason,omitempty"`
	Details string `json:"details,omitempty"`
	// Conditions limit what this peer knows or can do now.
	Conditions []discovery.Condition `json:"conditions,omitempty"`
	Name       string                `json:"name,omitempty"`  // of this peer
	Group      *discovery.Group      `json:"group,omitempty"` // absent without the coordination plane
	*registryHealth
}

// registryHealth describes the registry of instances.
type registryHealth struct {
	Version        string `json:"version"`
	UptimeSeconds  int64  `json:"uptime_seconds"`
	Registered     int    `json:"services_registered"` // instances of all peers in the catalog of this peer
	Healthy        int    `json:"services_healthy"`    // instances that are UP
	Unhealthy      int    `json:"services_unhealthy"`  // all other instances
	StorageBackend string `json:"storage_backend"`
	StorageHealthy bool   `json:"storage_healthy"`
}

// health serves people and dashboards: it answers 200 unless the registry is unusable.
func (d *discoveryAPI) health(w http.ResponseWriter, _ *http.Request) error {
	code, body := d.describe()
	return writeJSON(w, code, body)
}

func (d *discoveryAPI) describe() (code int, body healthBody) {
	code, body = http.StatusOK, d.condition()
	if err := d.node.Ready(); err != nil {
		body.Status, body.Reason = "degraded", fault.Message(err)
	}
	if d.agent != nil {
		storage := d.agent.storage()
		body.registryHealth = d.registryHealth(storage == nil)
		if storage != nil {
			code, body.Status = http.StatusServiceUnavailable, "unhealthy"
			body.Reason, body.Details = "storage_backend_unreachable", storage.Error()
		}
	}
	return code, body
}

// condition describes this peer, without the state of its registry.
func (d *discoveryAPI) condition() healthBody {
	s := d.node.Status()
	body := healthBody{Status: "healthy", Conditions: s.Conditions, Name: s.Name, Group: s.Group}
	if len(body.Conditions) > 0 {
		body.Status, body.Reason = "degraded", body.Conditions[0].Message
	}
	return body
}

func (d *discoveryAPI) registryHealth(storage bool) *registryHealth {
	state := d.node.Status()
	h := &registryHealth{
		Version: state.Version, UptimeSeconds: int64(state.UptimeSeconds), StorageBackend: "pebble", StorageHealthy: storage,
	}
	for status, n := range d.agent.census() {
		h.Registered += n
		if status == instance.StatusUp {
			h.Healthy += n
		}
	}
	h.Unhealthy = h.Registered - h.Healthy
	return h
}

// live reports that the process answers.
func live(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, healthBody{Status: "healthy"})
}

// ready serves orchestrators: its status says whether the peer can serve, its body with which limits.
// A caller who does not name this server gets the status alone.
func (d *discoveryAPI) ready(w http.ResponseWriter, r *http.Request) error {
	if err := d.node.Ready(); err != nil {
		return err
	}
	body := d.condition()
	if !d.hosts.serve(r) {
		body = healthBody{Status: body.Status}
	}
	return writeJSON(w, http.StatusOK, body)
}

// loggingLevel is the level of the log of a peer.
type loggingLevel struct {
	Level    string `json:"level"` // debug, info, warn or error
	Previous string `json:"previous"`
}

// setLogLevel changes the level of the log until the peer stops.
func (d *discoveryAPI) setLogLevel(w http.ResponseWriter, r *http.Request) error {
	if d.logLevel == nil {
		return fault.New("httpapi", fault.Unsupported, "this peer has a fixed level of its log")
	}
	text, err := readBody(w, r)
	if err != nil {
		return err
	}
	var req struct {
		Level string `json:"level"`
	}
	if err := input.Object(text, &req); err != nil {
		return err
	}
	previous, err := d.logLevel(req.Level)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, loggingLevel{req.Level, previous})
}
