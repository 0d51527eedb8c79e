// Package probe speaks to an endpoint of a stranger in the endpoint's own protocol, and says whether it answers.
//
// A table has a row for each kind of endpoint (kinds.go); a kind is one file. A probe follows no redirect, uses no proxy, sends no
// credential, reads a bounded number of bytes, ends with its context, and connects only to addresses that Policy and Config allow: an
// endpoint that names an address of this peer, of a metadata service, or a private one on the Internet, is not measured. Bounds on
// the connections to each address and the look-ups below each domain keep strangers from turning peers into a flood. All of them
// go through one dialer: line.go.
//
// A probe has the name of a common client: an endpoint that answers probes alone must not know them by theirs.
package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/clean"
)

// State is what a probe found.
type State string

// The states of an endpoint. The zero value means that it was not measured; people read Unmeasured then.
const (
	Unmeasured    State = "unmeasured"     // nobody could
	Answers       State = "answers"        // completed a handshake of its own protocol
	Refuses       State = "refuses"        // closed ports, or an answer that says that it does not serve
	WrongProtocol State = "wrong protocol" // something else answers
	NoSuchName    State = "no such name"   // the name has no address
	Certificate   State = "certificate"    // its certificate is not valid for its name and time
	Silent        State = "silent"         // no answer in time
)

// Outcome is the result of one probe.
type Outcome struct {
	State     State
	RoundTrip time.Duration // from the first packet to the answer of the protocol; 0 without one
	Detail    string        // in words, for people; at most 300 bytes
}

// Bounds of a probe.
const (
	Timeout      = 5 * time.Second // of a whole probe
	maxAddresses = 2               // tried of a name
	maxAnswer    = 16 << 10        // bytes read
	maxDetail    = 200

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
	if !t.kind.late {
		err = s.resolve(ctx)
	}
	if err == nil {
		o, err = t.kind.speak(ctx, s)
	}
	if err != nil {
		if o = Interpret(err); o.State == WrongProtocol && ctx.Err() != nil {
			o = Interpret(context.DeadlineExceeded) // whatever the connection says when its time ends
		}
	}
	if o.State == "" || ctx.Err() != nil && o.State != Answers && context.Cause(ctx) == context.Canceled {
		return Outcome{}, false
	}
	if o.State == Answers {
		o.RoundTrip = cmp.Or(o.RoundTrip, time.Since(s.began))
	}
	o.Detail = clean.Text(o.Detail, maxDetail)
	if t.without != "" {
		o.Detail += " (asked without " + t.without + ": the host has not named the provider's peer)"
	}
	return o, true
}

// session is one probe.
type session struct {
	*Line
	began time.Time // of the connection
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
	line.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: p.Roots}
	s.Line, s.began = line, time.Now()
	return nil
}

// answered is the outcome of a completed handshake.
func (s *session) answered(detail string) Outcome {
	return Outcome{State: Answers, RoundTrip: time.Since(s.began), Detail: detail}
}

// Interpret says what the error of a check found. The zero Outcome means that it says nothing about the target.
func Interpret(err error) Outcome {
	var name *net.DNSError
	var invalid *tls.CertificateVerificationError
	var timeout net.Error
	text := err.Error()
	switch {
	case errors.Is(err, errUnmeasured), Lacking(err):
		return Outcome{}
	case errors.As(err, &name):
		if name.IsNotFound {
			return Outcome{State: NoSuchName, Detail: text}
		}
		return Outcome{} // the resolver of this peer may be down
	case errors.As(err, &invalid):
		return Outcome{State: Certificate, Detail: text}
	case errors.As(err, &timeout) && timeout.Timeout():
		return Outcome{State: Silent, Detail: "no answer within " + Timeout.String()}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Outcome{State: Refuses, Detail: "nothing listens"}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Outcome{State: Silent, Detail: text}
	default:
		return Outcome{State: WrongProtocol, Detail: text}
	}
}

// Lacking reports whether this peer lacks a resource, such as a file descriptor, which voids a check: without it all targets would seem dead.
func Lacking(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	}, func(lack syscall.Errno) bool { return errors.Is(err, lack) })
}
