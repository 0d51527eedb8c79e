package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Methods by which callers prove their names.
const (
	MethodToken = "token"
	MethodJWT   = "jwt"
	MethodMTLS  = "mtls"
)

// Bounds of the settings.
const (
	maxTokens   = 1000
	maxPatterns = 1000 // services of one principal
	maxToken    = 8 << 10
	minHMAC     = 32 // bytes of a key: RFC 7518, section 3.2, asks for those of the hash
)

// Config are the settings under auth, with the names that they have there.
type Config struct {
	Enabled bool
	Method  string // token, jwt or mtls; "" is token

	// Token, or what is in the file, makes its bearer admin. Only for method token, as Tokens are.
	Token     Secret
	TokenFile string
	Tokens    []Token

	JWT JWT // only for method jwt

	// Certificates give roles to client certificates, only for method mtls. One that is not
	// listed has RoleService for services of the names in it.
	Certificates []Certificate
	CACert       string // PEM file of whom client certificates must be from; only for method mtls

	ServerCert string // PEM file: serve TLS; with ServerKey
	ServerKey  string

	// Anonymous is what a caller without a proof may: none or read-only. "" is read-only for
	// tokens, which SAP-044 Registry, section 8, asks for writes only, and none for certificates.
	Anonymous string
}

// Token is one of several bearer tokens.
type Token struct {
	Token     Secret // or
	TokenFile string
	Name      string // of the principal; "" is token-N, with its place in the list from 1
	Role      Role
	Services  []string // Principal.Services; only for RoleService, which needs one
}

// JWT says which JSON Web Tokens prove a name: those signed by the key, for the audience, that
// are not expired. Claim sub is the name; claims role and services are the principal's, and
// without a role it has RoleService for services of its name.
type JWT struct {
	Algorithms []string // RFC 7518, section 3.1, and EdDSA; all of one kind of key
	Key        Secret   // shared secret of HS*, public keys of the others in PEM; or
	KeyFile    string
	Audience   string
	Issuer     string // "": any
}

// Certificate is the role of a client certificate.
type Certificate struct {
	Name     string // common name or a DNS name of the certificate
	Role     Role
	Services []string
}

// Validate reports the first setting that does not fit the others, by its key below auth. Files
// are read by New and NewTLS.
func (c *Config) Validate() error {
	return first(c.validateTLS, func() error {
		if !c.Enabled {
			return nil
		}
		return first(c.validateMethod, c.validateAnonymous, c.validateTokens, c.JWT.validate(c.method() == MethodJWT), c.validateCertificates)
	})
}

// first runs checks up to the first that fails.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) method() string {
	if c.Method == "" {
		return MethodToken
	}
	return c.Method
}

// anonymous is the role of whoever proves nothing.
func (c *Config) anonymous() Role {
	if c.Anonymous == RoleReadOnly.String() || (c.Anonymous == "" && c.method() != MethodMTLS) {
		return RoleReadOnly
	}
	return RoleNone
}

func (c *Config) validateTLS() error {
	switch {
	case c.ServerCert == "" && c.ServerKey != "":
		return fault.Invalidf("server_cert", nil, "must be set with server_key")
	case c.ServerCert != "" && c.ServerKey == "":
		return fault.Invalidf("server_key", nil, "must be set with server_cert")
	}
	return nil
}

func (c *Config) validateMethod() error {
	mtls := c.method() == MethodMTLS
	switch {
	case !slices.Contains([]string{MethodToken, MethodJWT, MethodMTLS}, c.method()):
		return fault.Invalidf("method", c.Method, "must be token, jwt or mtls")
	case mtls && c.CACert == "":
		return fault.Invalidf("ca_cert", nil, "must be set for method mtls")
	case mtls && c.ServerCert == "":
		return fault.Invalidf("server_cert", nil, "must be set for method mtls")
	case !mtls && c.CACert != "":
		return fault.Invalidf("ca_cert", c.CACert, "is for method mtls, and the method is %s", c.method())
	}
	return nil
}

func (c *Config) validateAnonymous() error {
	if slices.Contains([]string{"", RoleNone.String(), RoleReadOnly.String()}, c.Anonymous) {
		return nil
	}
	return fault.Invalidf("anonymous", c.Anonymous, "must be none or read-only")
}

func (c *Config) validateTokens() error {
	given := c.Token != nil || c.TokenFile != "" || len(c.Tokens) > 0
	switch {
	case c.method() != MethodToken && given:
		return fault.Invalidf("token", nil, "and tokens are for method token, and the method is %s", c.method())
	case c.method() != MethodToken:
		return nil
	case !given:
		return fault.Invalidf("token", nil, "or token_file or tokens must be set for method token")
	case c.Token != nil && c.TokenFile != "":
		return fault.Invalidf("token_file", c.TokenFile, "must not be set beside token")
	case len(c.Tokens) > maxTokens:
		return fault.Invalidf("tokens", len(c.Tokens), "must be at most %d", maxTokens)
	}
	if c.Token != nil {
		if err := fault.In("token", checkToken(c.Token.Text())); err != nil {
			return err
		}
	}
	for i := range c.Tokens {
		if err := fault.In(fmt.Sprintf("tokens[%d]", i), c.Tokens[i].validate()); err != nil {
			return err
		}
	}
	return nil
}

func (t *Token) validate() error {
	if (t.Token == nil) == (t.TokenFile == "") {
		return fault.Invalidf("token", nil, "or token_file must be set, and not both")
	}
	if t.Token != nil {
		if err := fault.In("token", checkToken(t.Token.Text())); err != nil {
			return err
		}
	}
	return checkRole(t.Role, t.Services)
}

func (c *Config) validateCertificates() error {
	if len(c.Certificates) == 0 {
		return nil
	}
	if c.method() != MethodMTLS {
		return fault.Invalidf("certificates", nil, "are for method mtls, and the method is %s", c.method())
	}
	seen := map[string]bool{}
	for i, cert := range c.Certificates {
		err := checkRole(cert.Role, cert.Services)
		switch {
		case cert.Name == "":
			err = fault.Invalidf("name", nil, "must be set")
		case seen[cert.Name]:
			err = fault.Invalidf("name", cert.Name, "is listed twice")
		}
		if err != nil {
			return fault.In(fmt.Sprintf("certificates[%d]", i), err)
		}
		seen[cert.Name] = true
	}
	return nil
}

// checkRole wants a role that can do something, and services where they mean something.
func checkRole(r Role, services []string) error {
	switch {
	case r == RoleNone || r >= roles:
		return fault.Invalidf("role", nil, "must be read-only, service or admin")
	case r == RoleService && len(services) == 0:
		return fault.Invalidf("services", nil, `must be set for role service ("*": all)`)
	case r != RoleService && len(services) > 0:
		return fault.Invalidf("services", services, "are for role service, and the role is %s", r)
	}
	return checkServices(services)
}

func checkServices(services []string) error {
	if len(services) > maxPatterns {
		return fault.Invalidf("services", len(services), "must be at most %d", maxPatterns)
	}
	for i, s := range services {
		if star := strings.IndexByte(s, '*'); s == "" || (star >= 0 && star != len(s)-1) {
			return fault.Invalidf(fmt.Sprintf("services[%d]", i), s, `must be a name, or the beginning of names and "*"`)
		}
	}
	return nil
}

// checkToken wants what can stand in a header: visible ASCII. It names no field and shows no value.
func checkToken(text string) error {
	visible := !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
	switch {
	case text == "":
		return fault.New("", fault.Invalid, "is empty")
	case len(text) > maxToken:
		return fault.New("", fault.Invalid, "is over %d bytes", maxToken)
	case !visible:
		return fault.New("", fault.Invalid, "must be of visible ASCII characters without spaces")
	case text == redacted:
		return fault.New("", fault.Invalid, "is %s: what stands in printed settings for a secret", redacted)
	}
	return nil
}
