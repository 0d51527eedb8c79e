// Package probe speaks to an endpoint of a stranger in the endpoint's own protocol, and says whether it answers.
//
// A table has a row for each kind of endpoint (kinds.go); a kind is one file, and dialects.go has what those over
// HTTP say first. Only positive evidence says that an endpoint is Wrong. A probe follows one redirect at most, within
// the origin or to TLS at the same host, uses no proxy, sends no credential, reads a bounded number of bytes, ends
// with its context, and connects only to addresses that Policy and Config allow: an endpoint that names an address of
// this peer, of a metadata service, or a private one on the Internet, is not measured. Bounds on the connections to
// each address and the look-ups below each domain keep strangers from turning peers into a flood. All connections go
// through one dialer: line.go.
//
// A probe has the name of a common client: an endpoint that answers probes alone must not know them by theirs.
package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/clean"
)

// State is what a probe found.
type State string

// The states of an endpoint. The zero value means that it was not measured; people read Unmeasured then.
const (
	Unmeasured  State = "unmeasured"   // nobody could
	Answers     State = "answers"      // completed a handshake of its own protocol
	Closed      State = "closed"       // alive, with a gate: a key, a payment, a pause
	Refuses     State = "refuses"      // closed ports, or an answer that says that it does not serve
	Wrong       State = "wrong"        // something else answers, by positive evidence
	NoSuchName  State = "no such name" // the name has no address
	Certificate State = "certificate"  // its certificate is not valid for its name and time
	Silent      State = "silent"       // no answer in time
)

// Outcome is the result of one probe. One without a state says nothing about the target: what was known stays.
type Outcome struct {
	State     State
	RoundTrip time.Duration // from the first packet to the answer of the protocol; 0 without one
	Detail    string        // for people, in words of this program alone
	Text      string        // of the endpoint itself: words of a stranger, at most 200 bytes
	Asks      Price         // of a Closed endpoint
	Again     time.Duration // from now to the next check; 0: as usual. A Closed endpoint asks for it, at most MaxWait
	Passing   bool          // a Closed endpoint will soon serve, it says
}

// Bounds of a probe.
const (
	Timeout      = 5 * time.Second // of a whole probe
	maxAddresses = 2               // tried of a name
	maxAnswer    = 16 << 10        // bytes read
	maxText      = 200

	networkStands = 5 * time.Minute // an answer says that this peer's network works

	perAddress = 1.0 / 6 // connections to one address in a second, in the long run
	burst      = 8       // at once: one machine may have many offers
	perName    = 1.0 / 3 // look-ups below one registered domain in a second: a check of a domain has two
	nameBurst  = 16
	addresses  = 16384 // with a bound of their own, and as many domains; the least recently probed is dropped
)

// Config are the settings of a Prober. The zero value is that of a peer on the Internet.
type Config struct {
	Private  bool                  // private addresses are targets: the network is a LAN
	Loopback bool                  // loopback addresses are targets: the network is one machine
	Own      func(netip.Addr) bool // addresses of this peer; nil: none
	Trusted  bool                  // the operator names the targets: names may be relative, and nothing has a bound
	Roots    *x509.CertPool        // nil: the system's
	Resolver *net.Resolver         // of the two below; nil: the machine's
	Resolve  func(ctx context.Context, host string) ([]netip.Addr, error)
	Texts    func(ctx context.Context, name string) ([]string, error) // of the TXT records of a name
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// Prober runs probes. It is safe for concurrent use.
type Prober struct {
	Config
	policy Policy
	rates  *bounded.Buckets[netip.Prefix] // of connections
	names  *bounded.Buckets[string]       // of look-ups, by registered domain
	listen func() (net.PacketConn, error)

	heard4, heard6 atomic.Int64 // see session.family
}

// New returns a prober.
func New(c Config) *Prober {
	c.connect()
	return &Prober{
		Config: c, policy: NewPolicy(), listen: listen,
		rates: bounded.NewBuckets[netip.Prefix](addresses, perAddress, burst),
		names: bounded.NewBuckets[string](addresses, perName, nameBurst),
	}
}

// errUnmeasured says that this peer must not, or cannot, probe a target now. It says nothing about the target.
var errUnmeasured = errors.New("not measured")

// Probe speaks to a target. It reports false if it did not measure: the address is not allowed, its rate is used up, or this peer lacks
// a resource.
func (p *Prober) Probe(ctx context.Context, t Target) (Outcome, bool) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	s := &session{Line: &Line{prober: p, target: t}, began: time.Now()}
	defer func() { s.hangUp() }()
	var o Outcome
	var err error
	if !t.kind.late && !t.Carried {
		err = s.resolve(ctx)
	}
	if err == nil {
		o, err = t.kind.speak(ctx, s)
	}
	if err != nil {
		if o = Interpret(err); o.Detail == unclear && ctx.Err() != nil {
			o = Interpret(context.DeadlineExceeded) // whatever the connection says when its time ends
		}
		if s.asked != nil && s.asked.Load() && (o.Detail == alerted || o.Detail == broke) {
			o = Outcome{State: Closed, Detail: "asks for a client certificate"}
		}
		if noRoute(err) && !s.works() {
			o = Outcome{Detail: "this peer has no route to such addresses"}
		}
	} else {
		s.worked()
	}
	o.Text = clean.Text(o.Text, maxText)
	if ctx.Err() != nil && o.State != Answers && context.Cause(ctx) == context.Canceled {
		return Outcome{}, false
	}
	if o.State == Answers {
		o.RoundTrip = cmp.Or(o.RoundTrip, time.Since(s.began))
	} else {
		o.RoundTrip = 0
	}
	if t.without != "" {
		o.Detail += " (asked without " + t.without + ": the host has not named the provider's peer)"
	}
	return o, o.State != ""
}

// session is one probe.
type session struct {
	*Line
	began time.Time    // of the connection
	asked *atomic.Bool // for a client certificate; nil before resolve
}

// family returns when something last answered over the addresses of the target's family, in seconds of Unix time; nil
// without an address.
func (s *session) family() *atomic.Int64 {
	switch {
	case len(s.addrs) == 0:
		return nil
	case s.addrs[0].Is4():
		return &s.prober.heard4
	}
	return &s.prober.heard6
}

func (s *session) worked() {
	if f := s.family(); f != nil {
		f.Store(time.Now().Unix())
	}
}

// works reports whether this peer has a network with addresses of the target's family. Without one all targets would
// seem dead.
func (s *session) works() bool {
	f := s.family()
	return f != nil && time.Now().Unix()-f.Load() < int64(networkStands/time.Second)
}

// resolve finds the allowed addresses of the target.
func (s *session) resolve(ctx context.Context) error {
	p := s.prober
	line, err := p.Line(ctx, s.target, Timeout, maxAddresses, func(a netip.Addr) error {
		if p.allows(a) != nil {
			return errUnmeasured
		}
		return nil
	})
	if err != nil {
		return err
	}
	asked := new(atomic.Bool)
	none := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked.Store(true)
		return new(tls.Certificate), nil
	}
	line.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: p.Roots, GetClientCertificate: none}
	s.Line, s.began, s.asked = line, time.Now(), asked
	return nil
}

// answered is the outcome of a completed handshake.
func (s *session) answered(detail string) Outcome {
	return Outcome{State: Answers, RoundTrip: time.Since(s.began), Detail: detail}
}

// What an error says that proves nothing by itself.
const (
	unclear = "failed, and it is unclear why"
	alerted = "ended the handshake of TLS with an alert"
	broke   = "closes connections without an answer"
)

// Interpret says what the error of a check found. An Outcome without a state says nothing about the target.
func Interpret(err error) Outcome {
	var name *net.DNSError
	var invalid *tls.CertificateVerificationError
	var foreign *Foreign
	var record tls.RecordHeaderError
	var op *net.OpError
	var timeout net.Error
	switch {
	case errors.Is(err, errUnmeasured), Lacking(err):
		return Outcome{Detail: "this peer may not, or cannot, speak to it now"}
	case errors.As(err, &name):
		if name.IsNotFound {
			return Outcome{State: NoSuchName, Detail: "its name has no address"}
		}
		return Outcome{Detail: "its name could not be looked up"} // the resolver of this peer may be down
	case errors.As(err, &invalid):
		return doubted(invalid)
	case errors.As(err, &foreign):
		return Outcome{State: Wrong, Detail: foreign.Error(), Text: foreign.Text}
	case errors.As(err, &record):
		return Outcome{State: Wrong, Detail: "speaks no TLS"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return Outcome{State: Silent, Detail: "no answer in time"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Outcome{State: Refuses, Detail: "nothing listens"}
	case noRoute(err):
		return Outcome{State: Silent, Detail: "no route to it"}
	case errors.As(err, &op) && op.Op == "remote error":
		return Outcome{Detail: alerted}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		strings.Contains(err.Error(), "server closed idle connection"): // net/http has no name for it
		return Outcome{State: Refuses, Detail: broke}
	case strings.Contains(err.Error(), "malformed HTTP"): // nor for this
		return Outcome{State: Wrong, Detail: "speaks no HTTP"}
	}
	return Outcome{Detail: unclear}
}

// doubted says why a certificate is not valid.
func doubted(invalid *tls.CertificateVerificationError) Outcome {
	o := Outcome{State: Certificate, Detail: "its certificate is not valid"}
	var other x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var cause x509.CertificateInvalidError
	switch {
	case errors.As(invalid.Err, &other):
		o.Detail = "its certificate is for another name"
		if other.Certificate != nil {
			o.Text = strings.Join(other.Certificate.DNSNames, " ")
		}
	case errors.As(invalid.Err, &unknown):
		o.Detail = "nobody known vouches for its certificate"
	case errors.As(invalid.Err, &cause) && cause.Reason == x509.Expired:
		o.Detail = "its certificate has expired, or is not valid yet"
	}
	return o
}

func noRoute(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// Lacking reports whether this peer lacks a resource, such as a file descriptor, which voids a check: without it all targets would seem dead.
func Lacking(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	}, func(lack syscall.Errno) bool { return errors.Is(err, lack) })
}
