package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

var errCertificate = errors.New("the client certificate is expired or without a usable name")

// TLS holds the certificate of the listeners and, for method mtls, the CAs of client certificates. New
// files apply to later connections.
type TLS struct {
	files atomic.Pointer[reloadable[*tls.Config]]
}

// Adopt takes over the files of another one, for later connections.
func (t *TLS) Adopt(other *TLS) { t.files.Store(other.files.Load()) }

// NewTLS reads the files, or returns nil without TLS settings. It fails with Invalid, with the setting
// below auth.
func NewTLS(c Config, o Options) (*TLS, error) {
	const op = "access.NewTLS"
	if err := c.Validate(); err != nil || c.ServerCert == "" {
		return nil, fault.Wrap(op, err)
	}
	o = o.withDefaults()
	r := &reloadable[*tls.Config]{now: o.Now, log: o.Logger}
	r.files = []file{{setting: "server_cert", path: c.ServerCert}, {setting: "server_key", path: c.ServerKey, private: true}}
	auth := tls.NoClientCert
	if c.Enabled && c.method() == MethodMTLS {
		r.files = append(r.files, file{setting: "ca_cert", path: c.CACert})
		if auth = tls.RequireAndVerifyClientCert; c.anonymous() > RoleNone {
			auth = tls.VerifyClientCertIfGiven
		}
	}
	r.parse = func(contents [][]byte) (*tls.Config, error) { return parseTLS(contents, auth) }
	if err := r.load(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	t := &TLS{}
	t.files.Store(r)
	return t, nil
}

func parseTLS(contents [][]byte, auth tls.ClientAuthType) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fault.Invalidf("server_cert", nil, "does not match server_key: %w", err)
	}
	c := base()
	c.Certificates, c.ClientAuth = []tls.Certificate{pair}, auth
	if auth == tls.NoClientCert {
		return c, nil
	}
	// A resumed session would bypass a replacement of the CAs.
	c.SessionTicketsDisabled = true
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(contents[2]) {
		return nil, fault.Invalidf("ca_cert", nil, "must contain a certificate in PEM")
	}
	return c, nil
}

// Ends returns when the present certificate of the listeners ends.
func (t *TLS) Ends() time.Time { return (*t.files.Load().get()).Certificates[0].Leaf.NotAfter }

func base() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }

// Server returns the settings of a listener for protocols such as "h2" and "http/1.1". Each handshake
// uses the current files.
func (t *TLS) Server(protocols ...string) *tls.Config {
	c := base()
	c.NextProtos = protocols
	c.SessionTicketsDisabled = (*t.files.Load().current.Load()).SessionTicketsDisabled
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := (*t.files.Load().get()).Clone()
		now.NextProtos = protocols
		return now, nil
	}
	return c
}
