package config

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Auth are the settings of authentication and authorization. Package access interprets the
// methods, and checks the files and keys.
type Auth struct {
	Enabled      string        `yaml:"enabled" help:"Authenticate callers: true, false, or auto: if a token, a key or a CA is set."`
	Method       string        `yaml:"method" help:"token, jwt or mtls."`
	Token        secret.Value  `yaml:"token" reload:"hangup" help:"Bearer token of an admin, as \"${NAME}\" of an environment variable."`
	TokenFile    string        `yaml:"token_file" reload:"hangup" help:"File with the admin's token, readable only by its owner."`
	Tokens       []Token       `yaml:"tokens" reload:"hangup" help:"More tokens: [{token or token_file, name, role: read-only, service or admin, services: [web, api-*]}]."`
	Certificates []Certificate `yaml:"certificates" reload:"hangup" help:"Roles of client certificates: [{name, role, services}]. Default: change the service of the same name."`
	CACert       string        `yaml:"ca_cert" reload:"hangup" help:"PEM file of the CAs that may sign client certificates. For method mtls."`
	ServerCert   string        `yaml:"server_cert" reload:"hangup" help:"PEM file with the server's certificate: enables TLS. Needs server_key."`
	ServerKey    string        `yaml:"server_key" reload:"hangup" help:"PEM file with the server's private key, readable only by its owner."`
	Anonymous    string        `yaml:"anonymous" reload:"hangup" help:"Role of callers without credentials: none, read-only, or auto: read-only, but none with mtls."`
	JWT          JWT           `yaml:"jwt"`
}

// Token is one of several bearer tokens.
type Token struct {
	Token     secret.Value `yaml:"token,omitempty"`
	TokenFile string       `yaml:"token_file,omitempty"`
	Name      string       `yaml:"name,omitempty"`
	Role      string       `yaml:"role,omitempty"`     // read-only, service or admin
	Services  []string     `yaml:"services,omitempty"` // for role service
}

// JWT are the settings of JSON Web Tokens.
type JWT struct {
	Algorithms []string     `yaml:"algorithms" reload:"hangup" help:"Algorithms for one kind of key, such as [ES256]. All of auth.jwt is for method jwt."`
	Key        secret.Value `yaml:"key" reload:"hangup" help:"Shared secret for HS*, or public keys in PEM for other algorithms."`
	KeyFile    string       `yaml:"key_file" reload:"hangup" help:"File with the secret or the public keys."`
	Audience   string       `yaml:"audience" reload:"hangup" help:"Required audience of a token."`
	Issuer     string       `yaml:"issuer" reload:"hangup" help:"Required issuer of a token. Empty: any issuer with the key."`
}

// Certificate is the role of a client certificate.
type Certificate struct {
	Name     string   `yaml:"name,omitempty"` // common name or DNS name of the certificate
	Role     string   `yaml:"role,omitempty"`
	Services []string `yaml:"services,omitempty"`
}

// On reports whether callers must authenticate.
func (a *Auth) On() bool {
	if a.Enabled == auto {
		return a.hasToken() || a.JWT.Key != nil || a.JWT.KeyFile != "" || a.CACert != ""
	}
	return a.Enabled == "true"
}

// TLS reports whether the listeners of the API serve TLS.
func (a *Auth) TLS() bool { return a.ServerCert != "" }

func (a *Auth) hasToken() bool { return a.Token != nil || a.TokenFile != "" || len(a.Tokens) > 0 }

func (a *Auth) validate() error {
	errs := []error{
		oneOf("auth.enabled", a.Enabled, auto, "true", "false"),
		oneOf("auth.method", a.Method, "token", "jwt", "mtls"),
		oneOf("auth.anonymous", a.Anonymous, auto, "none", "read-only"),
		together("auth.server_cert", a.ServerCert, "auth.server_key", a.ServerKey),
		together("auth.server_key", a.ServerKey, "auth.server_cert", a.ServerCert),
	}
	for i, t := range a.Tokens {
		errs = append(errs, oneOf(fmt.Sprintf("auth.tokens[%d].role", i), t.Role, "read-only", "service", "admin"))
	}
	for i, c := range a.Certificates {
		errs = append(errs, oneOf(fmt.Sprintf("auth.certificates[%d].role", i), c.Role, "read-only", "service", "admin"))
	}
	return firstError(append(errs, a.fitsMethod())...)
}

// fitsMethod refuses settings that the method ignores, because their author relies on them.
func (a *Auth) fitsMethod() error {
	jwt := a.JWT.Key != nil || a.JWT.KeyFile != "" || a.JWT.Audience != "" || a.JWT.Issuer != "" || len(a.JWT.Algorithms) > 0
	for _, part := range []struct {
		key, method string
		set         bool
	}{
		{"auth.token", "token", a.hasToken()},
		{"auth.jwt", "jwt", jwt},
		{"auth.ca_cert", "mtls", a.CACert != ""},
		{"auth.certificates", "mtls", len(a.Certificates) > 0},
	} {
		if part.set && a.Method != part.method {
			return fault.Invalidf(part.key, nil, "needs auth.method %s, but the method is %s", part.method, a.Method)
		}
	}
	return nil
}

// together requires a setting if the other is set.
func together(key, value, other, otherValue string) error {
	if value == "" && otherValue != "" {
		return fault.Invalidf(key, nil, "must be set with %s", other)
	}
	return nil
}
