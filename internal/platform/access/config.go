package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Authentication methods.
const (
	MethodToken = "token"
	MethodJWT   = "jwt"
	MethodMTLS  = "mtls"
)

// Bounds of the settings.
const (
	maxTokens   = 1000
	maxPatterns = 1000 // patterns of one principal
	maxToken    = 8 << 10
	minHMAC     = 32 // bytes of a key; at least the size of the hash (RFC 7518, section 3.2)
)

// Config holds the settings below auth, under the same names.
type Config struct {
	Enabled bool
	Method  string // token, jwt or mtls; empty means token

	// Token, or the content of TokenFile, gives its bearer RoleAdmin. Only for method token, like
	// Tokens.
	Token     secret.Value
	TokenFile string
	Tokens    []Token

	JWT JWT // only for method jwt

	// Certificates assign roles to client certificates, only for method mtls. An unlisted
	// certificate has RoleService for services with the names in it.
	Certificates []Certificate
	CACert       string // PEM file of the CAs that may sign client certificates; only for method mtls

	ServerCert string // PEM file; enables TLS together with ServerKey
	ServerKey  string

	// Anonymous is the role of callers without credentials: none or read-only. Empty means none for
	// certificates, and read-only for tokens, which SAP-044 Registry, section 8, requires for
	// writes only.
	Anonymous string
}

// Token is one of several bearer tokens.
type Token struct {
	Token     secret.Value // or
	TokenFile string
	Name      string // of the principal; empty means token-N, its position in the list from 1
	Role      Role
	Services  []string // Principal.Services; only for RoleService, and required there
}

// JWT holds the rules for JSON Web Tokens: signed by the key, for the audience, and not expired. The
// claim sub is the name of the principal, and the claims role and services set its permissions. The
// default role is RoleService for services with its name.
type JWT struct {
	Algorithms []string     // RFC 7518, section 3.1, and EdDSA; all for the same kind of key
	Key        secret.Value // shared secret of HS*, or public keys in PEM; alternative to KeyFile
	KeyFile    string
	Audience   string
	Issuer     string // empty means any
}

// Certificate assigns a role to a client certificate.
type Certificate struct {
	Name     string // common name or DNS name in the certificate
	Role     Role
	Services []string
}

// Validate reports the first invalid setting by its key below auth. It does not read files.
func (c *Config) Validate() error {
	return first(c.validateTLS, func() error {
		if !c.Enabled {
			return nil
		}
		return first(c.validateMethod, c.validateAnonymous, c.validateTokens, c.JWT.validate(c.method() == MethodJWT), c.validateCertificates)
	})
}

// first runs checks up to the first failure.
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

// anonymous returns the role of callers without credentials.
func (c *Config) anonymous() Role {
	if c.Anonymous == RoleReadOnly.String() || (c.Anonymous == "" && c.method() != MethodMTLS) {
		return RoleReadOnly
	}
	return RoleNone
}

func (c *Config) validateTLS() error {
	switch {
	case c.ServerCert == "" && c.ServerKey != "":
		return fault.Invalidf("server_cert", nil, "is missing: set server_cert together with server_key")
	case c.ServerCert != "" && c.ServerKey == "":
		return fault.Invalidf("server_key", nil, "is missing: set server_key together with server_cert")
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
		return fault.Invalidf("ca_cert", c.CACert, "needs method mtls, not %s: change the method or remove the setting", c.method())
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
		return fault.Invalidf("token", nil, "and tokens need method token, not %s: change the method or remove the tokens", c.method())
	case c.method() != MethodToken:
		return nil
	case !given:
		return fault.Invalidf("token", nil, "is missing: set token, token_file or tokens for method token")
	case c.Token != nil && c.TokenFile != "":
		return fault.Invalidf("token_file", c.TokenFile, "conflicts with token: set only one of the two")
	case len(c.Tokens) > maxTokens:
		return fault.Invalidf("tokens", len(c.Tokens), "must have at most %d entries", maxTokens)
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
		return fault.Invalidf("token", nil, "set exactly one of token and token_file")
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
		return fault.Invalidf("certificates", nil, "need method mtls, not %s: change the method or remove the certificates", c.method())
	}
	seen := map[string]bool{}
	for i, cert := range c.Certificates {
		err := checkRole(cert.Role, cert.Services)
		switch {
		case cert.Name == "":
			err = fault.Invalidf("name", nil, "must be set")
		case seen[cert.Name]:
			err = fault.Invalidf("name", cert.Name, "is listed twice: remove one entry")
		}
		if err != nil {
			return fault.In(fmt.Sprintf("certificates[%d]", i), err)
		}
		seen[cert.Name] = true
	}
	return nil
}

// checkRole requires a role with permissions, and services exactly for RoleService.
func checkRole(r Role, services []string) error {
	switch {
	case r == RoleNone || r >= roles:
		return fault.Invalidf("role", nil, "must be read-only, service or admin")
	case r == RoleService && len(services) == 0:
		return fault.Invalidf("services", nil, `is missing for role service: list names, or "*" for all services`)
	case r != RoleService && len(services) > 0:
		return fault.Invalidf("services", services, "need role service, not %s: change the role or remove the services", r)
	}
	return checkServices(services)
}

func checkServices(services []string) error {
	if len(services) > maxPatterns {
		return fault.Invalidf("services", len(services), "must have at most %d entries", maxPatterns)
	}
	for i, s := range services {
		if star := strings.IndexByte(s, '*'); s == "" || (star >= 0 && star != len(s)-1) {
			return fault.Invalidf(fmt.Sprintf("services[%d]", i), s, `is malformed: use a name, or a prefix with "*"`)
		}
	}
	return nil
}

// checkToken requires visible ASCII, as headers do. Its errors have no field and never show the value.
func checkToken(text string) error {
	visible := !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
	switch {
	case text == "":
		return fault.New("", fault.Invalid, "must not be empty")
	case len(text) > maxToken:
		return fault.New("", fault.Invalid, "must have at most %d bytes", maxToken)
	case !visible:
		return fault.New("", fault.Invalid, "must contain only visible ASCII characters, without spaces")
	case text == secret.Redacted:
		return fault.New("", fault.Invalid, "is %s, the placeholder in printed settings: set the secret itself", secret.Redacted)
	}
	return nil
}
