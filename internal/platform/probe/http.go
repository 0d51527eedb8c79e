package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func web() []string    { return []string{"http", "https"} }
func webTLS() []string { return []string{"https"} }

// httpKind gets the path.
func httpKind() kind {
	return kind{name: "http", root: true, schemes: web(), secure: webTLS(), port: 80, speak: talk}
}

// talk asks in the dialects of the target's kind until one is proved, or a gate is closed. Otherwise the last one
// that counts decides, but an error in the form of the protocol is stronger than what says nothing.
func talk(ctx context.Context, s *session) (last Outcome, err error) {
	for i, d := range dialectsOf(s.target.Kind, s.target.Path) {
		a, err := s.follow(ctx, &d)
		switch {
		case err != nil && i > 0: // the server is there: it answered the dialect before
			return last, nil
		case err != nil:
			return Outcome{}, err
		}
		if id := a.header.Get("Mcp-Session-Id"); id != "" && d.kind == "mcp" {
			s.endSession(ctx, &d, id)
		}
		declared := d.kind != "http" && s.target.Path != "" && d.at("") == s.target.Path
		o := a.judge(&d, declared)
		switch {
		case s.target.without == itsPath && o.State == Refuses:
			o.State = "" // the root says nothing about the path
		case d.kind == "http" && s.target.Path == "" && a.status/100 == 4 && o.State == "":
			o.State, o.RoundTrip = Answers, a.took // any answer of a root proves plain HTTP
		}
		switch {
		case o.State == Answers, a.gated():
			return o, nil
		case a.mute && !d.only:
			return Outcome{}, context.DeadlineExceeded
		case !d.only && last.State != Closed:
			last = o
		}
	}
	return last, nil
}

// answer is the bounded answer of an HTTP server.
type answer struct {
	status int
	header http.Header
	body   []byte        // decoded; of a stream the data of one event
	event  string        // its name
	mute   bool          // a stream without an event in time
	coded  bool          // the body cannot be decoded
	secure bool          // it came over TLS
	took   time.Duration // from the beginning of the connection to the header
}

func (a *answer) text() string { return fmt.Sprintf("answered %d", a.status) }

// Bounds of what an endpoint says about the next check.
const (
	// MaxWait bounds the time that an endpoint may ask not to be checked, and how long it may be about to serve.
	MaxWait = 10 * time.Minute
	sooner  = 20 * time.Second // to the check after one that came at a bad moment
)

// gated reports whether the server is alive and lets nobody in without a key, a payment, a pause, or a proof of being
// no robot.
func (a *answer) gated() bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusUpgradeRequired, http.StatusTooManyRequests, http.StatusUnavailableForLegalReasons:
		return true
	}
	challenge := a.status == http.StatusServiceUnavailable && a.html() && a.says("challenge")
	return challenge || a.header.Get("Cf-Mitigated") != "" || a.header.Get("X-Amzn-Waf-Action") != ""
}

func (a *answer) html() bool { return strings.HasPrefix(a.header.Get("Content-Type"), "text/html") }

// says reports whether the body has one of some texts.
func (a *answer) says(texts ...string) bool {
	body := strings.ToLower(string(a.body))
	for _, text := range texts {
		if strings.Contains(body, text) {
			return true
		}
	}
	return false
}

// judge says what an answer in a dialect means. declared: the offer names the path, and the protocol has an answer to
// the request there; a path of plain HTTP may be the base of others. docs/endpoint-checks.md has the
// table.
func (a *answer) judge(d *dialect, declared bool) Outcome {
	if a.status/100 != 2 || a.gated() {
		text, failed := d.errs(a)
		o := a.refusal(failed, declared)
		o.Text = cmp.Or(text, o.Text)
		return o
	}
	words, text, proved := d.proves(a)
	failure, failed := d.errs(a)
	body := bytes.TrimSpace(a.body)
	begun := len(body) > 0 && (body[0] == '{' || body[0] == '[') && !json.Valid(body)
	switch {
	case proved:
		return Outcome{State: Answers, RoundTrip: a.took, Detail: words, Text: text}
	case failed:
		return Outcome{State: Closed, Detail: a.text() + " with an error of its protocol", Text: failure}
	case len(body) == 0, a.coded, a.mute, begun:
		return Outcome{Detail: a.text() + " without what would tell its protocol"}
	}
	return Outcome{State: Wrong, Detail: a.text() + ", and not in the form of " + d.kind}
}

// refusal says what a status other than success means in every protocol. failed: the body is an error in the form of
// the protocol.
func (a *answer) refusal(failed, declared bool) Outcome {
	o := Outcome{Detail: a.text()}
	gone := a.status == http.StatusNotFound || a.status == http.StatusGone
	unavailable := a.status == http.StatusServiceUnavailable
	switch {
	case a.gated():
		o.State, o.Again = Closed, a.wait()
		if a.status == http.StatusPaymentRequired {
			o.Asks = a.price()
		}
	case unavailable && (a.header.Get("Retry-After") != "" || failed && a.says("loading")):
		o.State, o.Passing, o.Again, o.Detail = Closed, true, a.wait(), o.Detail+": will soon serve"
	case failed && !unavailable && a.status >= 400 && a.status <= http.StatusInternalServerError:
		o.State, o.Detail = Closed, o.Detail+" with an error of its protocol"
	case a.status == http.StatusNetworkAuthenticationRequired: // of a network between
	case a.status >= 500, gone && declared:
		o.State = Refuses
	case a.status == http.StatusBadRequest && !a.secure &&
		a.says("to an https server", "sent to https port", "ssl-enabled server port"):
		o.State, o.Detail = Wrong, o.Detail+": speaks TLS at this port"
	case a.status == http.StatusRequestTimeout, a.status == http.StatusTooEarly:
		o.Again = sooner
	case a.status/100 == 3:
		o.Detail, o.Text = o.Detail+": a redirect that is not followed", a.header.Get("Location")
	}
	return o
}

// wait is the bounded time that a server asks not to be asked.
func (a *answer) wait() time.Duration {
	text := a.header.Get("Retry-After")
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then n is the greatest
		return min(time.Duration(n)*time.Second, MaxWait)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), MaxWait)
}

// find reads the value under a path of members of a JSON object into v, nil for none. A cut body counts if the value
// comes before the cut.
func (a *answer) find(v any, path ...string) bool {
	d := json.NewDecoder(bytes.NewReader(a.body))
	for _, wanted := range path {
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return false
		}
		for found := false; !found; {
			if !d.More() {
				return false
			}
			name, err := d.Token()
			var skip json.RawMessage
			if found = err == nil && name == wanted; !found && (err != nil || d.Decode(&skip) != nil) {
				return false
			}
		}
	}
	return v == nil || d.Decode(v) == nil
}

// follow asks in a dialect, and once more where a redirect within the origin, or from http to https of the same host,
// points.
func (s *session) follow(ctx context.Context, d *dialect) (*answer, error) {
	a, err := s.ask(ctx, d, d.at(""))
	if err != nil || a.status/100 != 3 {
		return a, err
	}
	next, ok := s.target.moved(d, a)
	if !ok {
		return a, nil
	}
	line := *s.Line
	line.target, line.client = next, nil
	defer line.hangUp()
	return (&session{Line: &line}).ask(ctx, d, next.Path)
}

// moved is the target of a redirect that a check follows. See and Found turn other methods than GET into GET, which
// asks something else.
func (t Target) moved(d *dialect, a *answer) (Target, bool) {
	if d.method != "" && (a.status == http.StatusFound || a.status == http.StatusSeeOther) {
		return t, false
	}
	base, err := url.Parse(t.url(d.at("")))
	if err != nil {
		return t, false
	}
	to, err := base.Parse(a.header.Get("Location"))
	if err != nil || a.header.Get("Location") == "" || !strings.EqualFold(to.Hostname(), t.Host) {
		return t, false
	}
	next := t
	next.Secure, next.Path, next.Port = to.Scheme == "https", to.RequestURI(), 80
	if next.Secure {
		next.Port = 443
	}
	if to.Port() != "" {
		n, err := strconv.ParseUint(to.Port(), 10, 16)
		if err != nil {
			return t, false
		}
		next.Port = uint16(n)
	}
	within := to.Scheme == base.Scheme && next.Port == t.Port
	return next, within || base.Scheme == "http" && to.Scheme == "https" && !t.Carried // nobody carries to another port
}

// url is the address of a path at the target.
func (t Target) url(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return map[bool]string{true: "https", false: "http"}[t.Secure] + "://" + t.authority() + path
}

// ask sends the request of a dialect, over the connection of the one before if the server keeps it.
func (s *session) ask(ctx context.Context, d *dialect, path string) (*answer, error) {
	r, err := http.NewRequestWithContext(ctx, d.method, s.target.url(path), strings.NewReader(d.body))
	if err != nil {
		return nil, err
	}
	if r.Header = d.header.Clone(); r.Header == nil {
		r.Header = http.Header{}
	}
	began := time.Now()
	resp, err := s.web().RoundTrip(r) // follows no redirect
	if err != nil {
		return nil, s.heard.explain(err, s.target.Secure, "HTTP")
	}
	defer func() { _ = resp.Body.Close() }()
	a := &answer{status: resp.StatusCode, header: resp.Header, secure: s.target.Secure, took: time.Since(began)}
	switch body, ok := decoded(resp); {
	case d.anyBody && a.status/100 == 2:
	case !ok:
		a.coded = true
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		a.event, a.body = eventOf(body, d.event)
		a.mute = len(a.body) == 0 && ctx.Err() != nil
	default:
		a.body, _ = io.ReadAll(io.LimitReader(body, maxAnswer)) // what came is enough, or tells nothing
		if len(a.body) == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	a.body = bytes.TrimPrefix(a.body, []byte("\xef\xbb\xbf"))
	return a, nil
}

// decoded is the body as the server meant it: some compress without being asked. It reports false for an unknown
// encoding.
func decoded(resp *http.Response) (r io.Reader, ok bool) {
	var err error
	switch limited := io.LimitReader(resp.Body, maxAnswer); strings.ToLower(resp.Header.Get("Content-Encoding")) {
	case "", "identity":
		return resp.Body, true
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(limited)
	case "deflate":
		r, err = zlib.NewReader(limited)
	default:
		return nil, false
	}
	return r, err == nil
}

// eventOf returns the first event of a stream that has a name, or without one the first that is an answer: it is no
// request and no notice.
func eventOf(r io.Reader, wanted string) (name string, data []byte) {
	scan := bufio.NewScanner(io.LimitReader(r, maxAnswer))
	scan.Buffer(nil, maxAnswer)
	for scan.Scan() {
		line := scan.Bytes()
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimSpace(rest)...)
		} else if rest, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			name = string(bytes.TrimSpace(rest))
		} else if len(line) == 0 {
			if len(data) > 0 && (name == wanted || wanted == "" && !(&answer{body: data}).find(nil, "method")) {
				return name, data
			}
			name, data = "", nil
		}
	}
	return name, data
}
