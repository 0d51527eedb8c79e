package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func web() []string    { return []string{"http", "https"} }
func webTLS() []string { return []string{"https"} }

// httpKind gets the path. Any answer is one, but an error of the server.
func httpKind() kind {
	return kind{name: "http", root: true, schemes: web(), secure: webTLS(), port: 80, speak: func(ctx context.Context, s *session) (Outcome, error) {
		a, err := s.ask(ctx, http.MethodGet, s.target.Path, nil, nil)
		if err != nil {
			return Outcome{}, err
		}
		if a.status >= 500 {
			return a.as(Refuses), nil
		}
		return s.answered(a.text()), nil
	}}
}

// answer is the bounded answer of an HTTP server.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) text() string { return fmt.Sprintf("answered %d", a.status) }

func (a *answer) as(s State) Outcome { return Outcome{State: s, Detail: a.text()} }

// ask sends one request, over the connection of the one before if the server keeps it.
func (s *session) ask(ctx context.Context, method, path string, header http.Header, body []byte) (*answer, error) {
	scheme := "http"
	if s.target.Secure {
		scheme = "https"
	}
	if path == "" {
		path = "/"
	}
	r, err := http.NewRequestWithContext(ctx, method, scheme+"://"+s.target.authority()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	resp, err := s.web().RoundTrip(r) // follows no redirect
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.body = firstEvent(resp.Body)
		return a, nil
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if len(a.body) > 0 {
		err = nil // what came is enough to tell the protocol
	}
	return a, err
}

// has reports whether the body is a JSON object with a member. A cut body counts if the member comes before the cut.
func (a *answer) has(member string) bool {
	d := json.NewDecoder(bytes.NewReader(a.body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil || name == member {
			return err == nil
		}
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return false
		}
	}
	return false
}

// list is the probe of an API that lists something: path gives a JSON object with a member. An API that asks for a key answers.
func list(path func(string) string, member string) func(context.Context, *session) (Outcome, error) {
	return func(ctx context.Context, s *session) (Outcome, error) {
		a, err := s.ask(ctx, http.MethodGet, path(s.target.Path), nil, nil)
		switch {
		case err != nil:
			return Outcome{}, err
		case a.status >= 500:
			return a.as(Refuses), nil
		case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden, a.status == http.StatusOK && a.has(member):
			return s.answered(a.text()), nil
		default:
			return Outcome{State: WrongProtocol, Detail: a.text() + ", without " + member}, nil
		}
	}
}
