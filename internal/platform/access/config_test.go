package access

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestConfigAdmits(t *testing.T) {
	s := secret.New("abc123")
	for _, c := range []Config{
		{},
		{Method: "none of them", Token: s, Anonymous: "admin"}, // off
		{ServerCert: "a", ServerKey: "b"},
		{Enabled: true, Token: s},
		{Enabled: true, Method: MethodToken, TokenFile: "t", Anonymous: "none"},
		{Enabled: true, Tokens: []Token{{Token: s, Role: RoleService, Services: []string{"web", "api-*", "prod/*", "*"}}}},
		{Enabled: true, Method: MethodMTLS, CACert: "c", ServerCert: "a", ServerKey: "b", Certificates: []Certificate{{Name: "ops", Role: RoleAdmin}}},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"ES256"}, KeyFile: "k", Audience: "a"}, ServerCert: "a", ServerKey: "b"},
	} {
		require.NoError(t, c.Validate(), "%+v", c)
	}
}

// TestConfigRefuses has one case for every rule.
func TestConfigRefuses(t *testing.T) {
	s := secret.New("abc123")
	jwt := JWT{Algorithms: []string{"HS256", "HS512"}, Key: s, Audience: "a"}
	alter := func(f func(*JWT)) Config {
		j := jwt
		f(&j)
		return Config{Enabled: true, Method: MethodJWT, JWT: j}
	}
	listed := func(t Token) Config {
		return Config{Enabled: true, Tokens: []Token{{Token: secret.New("b"), Role: RoleAdmin}, t}}
	}
	certs := func(list ...Certificate) Config {
		return Config{Enabled: true, Method: MethodMTLS, CACert: "c", ServerCert: "a", ServerKey: "b", Certificates: list}
	}
	for i, c := range []struct {
		config Config
		field  string
	}{
		{Config{ServerCert: "a"}, "server_key"},
		{Config{ServerKey: "a"}, "server_cert"},
		{Config{Enabled: true, Method: "basic"}, "method"},
		{Config{Enabled: true, Method: MethodMTLS, ServerCert: "a", ServerKey: "b"}, "ca_cert"},
		{Config{Enabled: true, Method: MethodMTLS, CACert: "c"}, "server_cert"},
		{Config{Enabled: true, Token: s, CACert: "c"}, "ca_cert"},
		{Config{Enabled: true, Token: s, Anonymous: "service"}, "anonymous"},
		{Config{Enabled: true, Token: s, Anonymous: "admin"}, "anonymous"},
		{Config{Enabled: true}, "token"},
		{Config{Enabled: true, Token: s, TokenFile: "t"}, "token_file"},
		{Config{Enabled: true, Token: secret.New("[redacted]")}, "token"},
		{Config{Enabled: true, Token: secret.New("two words")}, "token"},
		{Config{Enabled: true, Token: secret.New(strings.Repeat("x", maxToken+1))}, "token"},
		{Config{Enabled: true, Tokens: make([]Token, maxTokens+1)}, "tokens"},
		{listed(Token{Role: RoleAdmin}), "tokens[1].token"},
		{listed(Token{Token: s, TokenFile: "t", Role: RoleAdmin}), "tokens[1].token"},
		{listed(Token{Token: secret.New(" "), Role: RoleAdmin}), "tokens[1].token"},
		{listed(Token{Token: s}), "tokens[1].role"},
		{listed(Token{Token: s, Role: roles}), "tokens[1].role"},
		{listed(Token{Token: s, Role: RoleService}), "tokens[1].services"},
		{listed(Token{Token: s, Role: RoleAdmin, Services: []string{"web"}}), "tokens[1].services"},
		{listed(Token{Token: s, Role: RoleService, Services: []string{"web", ""}}), "tokens[1].services[1]"},
		{listed(Token{Token: s, Role: RoleService, Services: []string{"w*b"}}), "tokens[1].services[0]"},
		{listed(Token{Token: s, Role: RoleService, Services: make([]string, maxPatterns+1)}), "tokens[1].services"},
		{Config{Enabled: true, Token: s, JWT: JWT{Issuer: "i"}}, "jwt"},
		{Config{Enabled: true, Method: MethodJWT, JWT: jwt, Token: s}, "token"},
		{alter(func(j *JWT) { j.Algorithms = nil }), "jwt.algorithms"},
		{alter(func(j *JWT) { j.Algorithms = []string{"none"} }), "jwt.algorithms"},
		{alter(func(j *JWT) { j.Algorithms = []string{"hs256"} }), "jwt.algorithms"},
		{alter(func(j *JWT) { j.Algorithms = []string{"RS256", "HS256"} }), "jwt.algorithms"},
		{alter(func(j *JWT) { j.Algorithms = []string{"ES256", "ES384"} }), "jwt.algorithms"},
		{alter(func(j *JWT) { j.Key = nil }), "jwt.key"},
		{alter(func(j *JWT) { j.KeyFile = "k" }), "jwt.key"},
		{alter(func(j *JWT) { j.Audience = "" }), "jwt.audience"},
		{Config{Enabled: true, Token: s, Certificates: []Certificate{{Name: "a", Role: RoleAdmin}}}, "certificates"},
		{certs(Certificate{Role: RoleAdmin}), "certificates[0].name"},
		{certs(Certificate{Name: "a"}), "certificates[0].role"},
		{certs(Certificate{Name: "a", Role: RoleAdmin}, Certificate{Name: "a", Role: RoleReadOnly}), "certificates[1].name"},
		{certs(Certificate{Name: "a", Role: RoleService}), "certificates[0].services"},
	} {
		err := c.config.Validate()
		require.ErrorIs(t, err, fault.Invalid, "case %d: %+v", i, c.config)
		require.Equal(t, c.field, fault.FieldOf(err), "case %d: %v", i, err)
		_, err = New(c.config, Options{})
		require.ErrorIs(t, err, fault.Invalid)
		_, err = NewTLS(c.config, Options{})
		require.ErrorIs(t, err, fault.Invalid)
	}
}
