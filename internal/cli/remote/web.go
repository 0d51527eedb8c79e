package remote

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Web is the part of a command that calls the HTTP API of a peer.
type Web struct {
	con         *term.Console
	address     string
	standard    string // address of a peer without settings
	credentials credentials
	base        string // URL of the peer, after Open
	http        *http.Client
	token       string
}

// NewWeb adds the flags of a command that calls the HTTP API of a peer.
func NewWeb(con *term.Console, cmd *cobra.Command, standard string) *Web {
	w := &Web{con: con, standard: standard}
	cmd.Flags().StringVar(&w.address, "http", "", "HTTP address of the peer to call: HOST:PORT or URL (environment BLACKHOLE_HTTP; default "+standard+")")
	w.credentials.flags(cmd)
	return w
}

// Open reads the credentials. A token leaves this host only under TLS.
func (w *Web) Open() (err error) {
	own, _ := w.con.Env(config.Prefix + "HTTP")
	address := cmp.Or(w.address, own, w.standard)
	c := &w.credentials
	secure, err := c.tls()
	if err != nil {
		return err
	}
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if secure != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		return fault.Invalidf("--http", address, "must be HOST:PORT or a URL of http or https without a path")
	}
	if w.token, err = c.secret(w.con); err != nil {
		return err
	}
	if ip := net.ParseIP(u.Hostname()); w.token != "" && u.Scheme == "http" && u.Hostname() != "localhost" && !ip.IsLoopback() {
		return fault.Invalidf("--token", nil, "needs TLS unless the peer runs on this host: see --tls-ca")
	}
	w.base = u.Scheme + "://" + u.Host
	w.http = &http.Client{Transport: &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return nil
}

// Post sends a text in JSON with the credentials.
func (w *Web) Post(ctx context.Context, path string, body []byte, headers map[string]string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fault.Invalidf("--http", w.base, "is no address: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	answer, err := w.http.Do(r)
	if err != nil {
		return nil, fault.New("", fault.Unavailable, "no peer answers at %s: %w", w.base, exit.Cause(err))
	}
	return answer, nil
}
