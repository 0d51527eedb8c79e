package httpapi

import (
	"net/http"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/instance"
)

func (s *Server) status(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, s.Node.Status())
	return nil
}

func (s *Server) peers(w http.ResponseWriter, _ *http.Request) error {
	peers := s.Node.Peers()
	if peers == nil {
		peers = []discovery.PeerInfo{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"peers": peers})
	return nil
}

// healthBody is the answer of /v1/health and /readyz. What the SAP-044 Registry adds is there
// where the agent plane is served.
type healthBody struct {
	Status  string `json:"status"` // healthy, degraded, or unhealthy: of no use
	Reason  string `json:"reason,omitempty"`
	Details string `json:"details,omitempty"`
	*registryHealth
}

// registryHealth is how the registry of instances stands.
type registryHealth struct {
	Version        string `json:"version"`
	UptimeSeconds  int64  `json:"uptime_seconds"`
	Registered     int    `json:"services_registered"` // instances, as are the next two
	Healthy        int    `json:"services_healthy"`
	Unhealthy      int    `json:"services_unhealthy"` // all others
	StorageBackend string `json:"storage_backend"`
	StorageHealthy bool   `json:"storage_healthy"`
}

// health tells the truth with status 200, as long as there is a registry: it is for people and
// dashboards.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	code, body := http.StatusOK, healthBody{Status: "healthy"}
	if err := s.Node.Ready(); err != nil {
		body.Status, body.Reason = "degraded", err.Error()
	}
	if s.Agent != nil {
		storage := s.Agent.storage()
		body.registryHealth = s.registryHealth(storage == nil)
		if storage != nil {
			code, body.Status = http.StatusServiceUnavailable, "unhealthy"
			body.Reason, body.Details = "storage_backend_unreachable", storage.Error()
		}
	}
	writeJSON(w, code, body)
	return nil
}

func (s *Server) registryHealth(storage bool) *registryHealth {
	state := s.Node.Status()
	h := &registryHealth{
		Version: state.Version, UptimeSeconds: int64(state.UptimeSeconds), StorageBackend: "pebble", StorageHealthy: storage,
	}
	for status, n := range s.Agent.census() {
		h.Registered += n
		if status == instance.StatusUp {
			h.Healthy += n
		}
	}
	h.Unhealthy = h.Registered - h.Healthy
	return h
}

// live says that the process answers.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, healthBody{Status: "healthy"})
	return nil
}

// ready says whether the peer can serve, by its status: it is for orchestrators.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) error {
	if err := s.Node.Ready(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, healthBody{Status: "healthy"})
	return nil
}
