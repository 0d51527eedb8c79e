package probe

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/endpoint"
)

// kind is a protocol of endpoints. A new one is a file with a function that returns it, and a row in kinds.
type kind struct {
	name      string
	schemes   []string // of endpoints in this protocol, whatever else is declared
	protocols []string // declared by the offer: these choose the kind for an endpoint of the schemes in over
	over      []string
	atop      bool     // an offer declares it beside the scheme that carries it; otherwise a declared scheme wins
	secure    []string // of schemes: with TLS
	late      bool     // it finds the addresses itself
	root      bool     // a client need not know a path: without consent the root is asked for
	port      uint16   // without one in the endpoint; secure schemes have 443; 0: it is required
	// speak completes one handshake. An error is interpreted by session.failed.
	speak func(context.Context, *session) (Outcome, error)
}

// kinds is the table. WireGuard has no row: its servers are silent to strangers, so nobody can measure them.
// The first row that fits an endpoint is its kind, so special protocols come before those that carry them.
func kinds() []kind {
	return []kind{
		mcpKind(), a2aKind(), openaiKind(), ollamaKind(), s3Kind(), grpcKind(), websocketKind(), socksKind(), quicKind(), libp2pKind(), httpKind(), tcpKind(),
	}
}

// Target is an endpoint to speak to.
type Target struct {
	Kind   string // of the table
	Host   string // a name or an address
	Port   uint16
	Path   string // from "/" on; empty without one
	Secure bool   // TLS
	// Carried says that somebody else carries the connections: see Over.
	Carried bool

	dial    func(context.Context) (net.Conn, error) // of a carried one
	kind    kind
	peer    string // that a domain may name
	without string // what was left out of the endpoint: see Withheld
}

// Parse reads an endpoint of an offer with the protocols that the offer declares. It reports false for an endpoint of no known kind, which
// nobody can measure.
func Parse(text string, protocols []string) (Target, bool) {
	if !endpoint.Callable(text) {
		return Target{}, false
	}
	if strings.HasPrefix(text, "/") {
		return parseMultiaddr(text)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	}
	u, err := url.Parse("x://" + rest)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return Target{}, false
	}
	t := Target{Host: strings.ToLower(u.Hostname()), Path: u.EscapedPath()}
	if u.RawQuery != "" {
		t.Path += "?" + u.RawQuery
	}
	return t.as(strings.ToLower(scheme), u.Port(), protocols)
}

// as finds the kind of a target.
func (t Target) as(scheme, port string, protocols []string) (Target, bool) {
	for _, k := range kinds() {
		declared := slices.Contains(k.over, scheme) && (k.atop || !slices.Contains(protocols, scheme)) &&
			slices.ContainsFunc(protocols, func(p string) bool { return slices.Contains(k.protocols, strings.ToLower(p)) })
		if !declared && !slices.Contains(k.schemes, scheme) {
			continue
		}
		t.kind, t.Kind, t.Secure = k, k.name, slices.Contains(k.secure, scheme)
		t.Port = k.port
		if t.Secure {
			t.Port = 443
		}
		if port != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return Target{}, false
			}
			t.Port = uint16(n)
		}
		return t, t.Port != 0
	}
	return Target{}, false
}

// Carried returns the target of a service that somebody else carries connections to, in plain text and in the first
// protocol of the table that is declared. Without one the answer says that a connection opens, and no more.
func Carried(protocols []string) Target {
	t := Target{Host: "localhost", Port: 80, Carried: true, kind: tcpKind()} // services on a loopback serve that name
	for _, k := range slices.Backward(kinds()) {
		if !slices.Contains(k.over, "udp") && slices.ContainsFunc(protocols, func(p string) bool {
			p = strings.ToLower(p)
			return p == k.name || slices.Contains(k.protocols, p)
		}) {
			t.kind = k
		}
	}
	t.Kind = t.kind.name
	return t
}

// Over returns a carried target with the way to it. An error other than Gone says nothing about the service.
func (t Target) Over(dial func(context.Context) (net.Conn, error)) Target {
	t.dial = dial
	return t
}

// authority is the host and the port.
func (t Target) authority() string { return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))) }

// tcpKind connects, and says nothing: endpoints without a known protocol.
func tcpKind() kind {
	return kind{name: "tcp", schemes: []string{"tcp", "tls", ""}, secure: []string{"tls"}, speak: func(ctx context.Context, s *session) (Outcome, error) {
		_, end, err := s.Open(ctx)
		if err != nil {
			return Outcome{}, err
		}
		defer end()
		return s.answered("connected"), nil
	}}
}

// String identifies what a probe does: equal targets have equal strings.
func (t Target) String() string {
	text := t.Kind + " " + t.authority() + t.Path
	return text + map[bool]string{true: " secure"}[t.Secure] + map[bool]string{true: " carried"}[t.Carried]
}
