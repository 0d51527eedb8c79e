package httpapi

import (
	"net/http"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
)

// openAPI serves the document of all routes, served here or not.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	write(w, http.StatusOK, []byte(openapi.Document()))
	return nil
}
