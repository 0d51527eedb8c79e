package config

import (
	"fmt"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Auth are the settings of who may use the API. What the methods mean, and whether the files
// and keys are any good, is decided where callers are admitted.
type Auth struct {
	Enabled   string  `koanf:"enabled"`    // true, false, or auto: if a token, a key or a CA is set
	Method    string  `koanf:"method"`     // token, jwt or mtls
	Token     Secret  `koanf:"token"`      // of an admin
	TokenFile string  `koanf:"token_file"` // the same in a file
	Tokens    []Token `koanf:"tokens"`
	JWT       JWT     `koanf:"jwt"`

	Certificates []Certificate `koanf:"certificates"` // roles of client certificates
	CACert       string        `koanf:"ca_cert"`      // PEM file: of whom client certificates must be
	ServerCert   string        `koanf:"server_cert"`  // PEM file: serve TLS
	ServerKey    string        `koanf:"server_key"`   // PEM file

	Anonymous string `koanf:"anonymous"` // of callers without a proof: none, read-only, or auto: read-only, and with mtls none
}

// Token is one of several bearer tokens. Its JSON is for people.
type Token struct {
	Token     Secret   `koanf:"token" json:"token,omitzero"`
	TokenFile string   `koanf:"token_file" json:"token_file,omitzero"`
	Name      string   `koanf:"name" json:"name,omitzero"`
	Role      string   `koanf:"role" json:"role,omitzero"`         // read-only, service or admin
	Services  []string `koanf:"services" json:"services,omitzero"` // of role service
}

// JWT are the settings of JSON Web Tokens.
type JWT struct {
	Algorithms []string `koanf:"algorithms"` // for one kind of key
	Key        Secret   `koanf:"key"`        // shared secret, or public keys in PEM
	KeyFile    string   `koanf:"key_file"`   // the same in a file
	Audience   string   `koanf:"audience"`
	Issuer     string   `koanf:"issuer"` // empty: any
}

// Certificate is the role of a client certificate. Its JSON is for people.
type Certificate struct {
	Name     string   `koanf:"name" json:"name,omitzero"` // common name or DNS name in it
	Role     string   `koanf:"role" json:"role,omitzero"`
	Services []string `koanf:"services" json:"services,omitzero"`
}

// On reports whether callers must prove who they are.
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

// fitsMethod refuses what the method does not use: whoever wrote it believes in it.
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
			return fault.Invalidf(part.key, nil, "is for auth.method %s, which is %s", part.method, a.Method)
		}
	}
	return nil
}

// together wants one setting where the other is.
func together(key, value, other, otherValue string) error {
	if value == "" && otherValue != "" {
		return fault.Invalidf(key, nil, "must be set with %s", other)
	}
	return nil
}
