package httpapi

import (
	"net/http"

	"github.com/blackhole/blackhole/pkg/discovery"
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

// healthBody is the answer of /v1/health and /readyz.
type healthBody struct {
	Status string `json:"status"` // healthy or degraded
	Reason string `json:"reason,omitempty"`
}

// health tells the truth with status 200: it is for people and dashboards.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if err := s.Node.Ready(); err != nil {
		writeJSON(w, http.StatusOK, healthBody{Status: "degraded", Reason: err.Error()})
		return nil
	}
	writeJSON(w, http.StatusOK, healthBody{Status: "healthy"})
	return nil
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
