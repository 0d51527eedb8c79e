package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/ui"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Pages lets the page in a browser act for a caller without its credentials.
type Pages interface {
	// Link returns a link to the page, with a code that works once if the caller has a name.
	Link(ctx context.Context) (discovery.PageLink, error)
	// Redeem exchanges the code of a link for a bearer token.
	Redeem(code string) (token string, expires time.Time, err error)
	// End ends the session of the page that calls.
	End(ctx context.Context) error
}

// pageAPI serves the login of the page.
type pageAPI struct{ pages Pages }

func (p pageAPI) routes() []route {
	return []route{
		{pattern: "POST /v1/page/links", role: access.RoleReadOnly, serve: handler(p.link)},
		{pattern: "POST /v1/page/sessions", role: access.RoleNone, serve: handler(p.open)}, // the code is the credential
		{pattern: "DELETE /v1/page/sessions", role: access.RoleReadOnly, serve: handler(p.end)},
	}
}

func (p pageAPI) link(w http.ResponseWriter, r *http.Request) error {
	if p.pages == nil {
		return errNoPages()
	}
	link, err := p.pages.Link(r.Context())
	if err != nil {
		return err
	}
	return writeSecret(w, http.StatusCreated, link)
}

// pageSession is the answer to a code.
type pageSession struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires_at"`
}

func (p pageAPI) open(w http.ResponseWriter, r *http.Request) error {
	if p.pages == nil {
		return errNoPages()
	}
	text, err := readBody(w, r)
	if err != nil {
		return err
	}
	var req struct {
		Code string `json:"code"`
	}
	if err := input.Object(text, &req); err != nil {
		return err
	}
	token, expires, err := p.pages.Redeem(req.Code)
	if err != nil {
		return err
	}
	return writeSecret(w, http.StatusCreated, pageSession{token, expires})
}

func (p pageAPI) end(w http.ResponseWriter, r *http.Request) error {
	if p.pages == nil {
		return errNoPages()
	}
	if err := p.pages.End(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func errNoPages() error {
	return fault.New("httpapi", fault.Unsupported, "this peer has no authentication, so no link is needed: open %s", ui.Prefix)
}

// writeSecret writes an answer that nobody may keep.
func writeSecret(w http.ResponseWriter, code int, v any) error {
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, code, v)
}
