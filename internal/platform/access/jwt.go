package access

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	leeway      = 30 * time.Second // tolerated difference between the clocks of issuer and peer
	maxVerified = 4096             // verified tokens in the cache
	maxName     = 256              // bytes of a sub
	minRSA      = 2048             // bits: RFC 7518, section 3.3
)

// algorithms maps the allowed algorithms to the kind of their key. All algorithms of a configuration
// have one kind, so that no token can turn a public key into an HMAC secret.
func algorithms() map[string]string {
	return map[string]string{
		"HS256": "hmac", "HS384": "hmac", "HS512": "hmac",
		"RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "PS256": "rsa", "PS384": "rsa", "PS512": "rsa",
		"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "ed25519",
	}
}

// validate returns the check of the settings. Other methods than jwt allow none.
func (j *JWT) validate(used bool) func() error {
	return func() error {
		if !used {
			return fault.In("jwt", j.unused())
		}
		return fault.In("jwt", first(j.validateAlgorithms, j.validateRest))
	}
}

func (j *JWT) unused() error {
	if len(j.Algorithms) > 0 || j.Key != nil || j.KeyFile != "" || j.Audience != "" || j.Issuer != "" {
		return fault.New("", fault.Invalid, "needs method jwt: set the method or remove this section")
	}
	return nil
}

func (j *JWT) validateAlgorithms() error {
	if len(j.Algorithms) == 0 {
		return fault.Invalidf("algorithms", nil, "must be set for method jwt")
	}
	kind := algorithms()[j.Algorithms[0]]
	for _, a := range j.Algorithms {
		switch k := algorithms()[a]; {
		case k == "":
			return fault.Invalidf("algorithms", a, "must be one of HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA")
		case k != kind:
			return fault.Invalidf("algorithms", j.Algorithms, "need different kinds of keys: use algorithms of one kind")
		}
	}
	return nil
}

func (j *JWT) validateRest() error {
	switch {
	case (j.Key == nil) == (j.KeyFile == ""):
		return fault.Invalidf("key", nil, "set exactly one of key and key_file")
	case j.Audience == "":
		return fault.Invalidf("audience", nil, "is missing: name the audience, to reject tokens for other services")
	}
	return nil
}

// files returns the files of the settings.
func (j *JWT) files() []file {
	if j.KeyFile == "" {
		return nil
	}
	return []file{{setting: "jwt.key_file", path: j.KeyFile, private: algorithms()[j.Algorithms[0]] == "hmac"}}
}

// parse makes a verifier from the content of the key file or the key in the settings.
func (j *JWT) parse(contents [][]byte, now func() time.Time) (tokenVerifier, error) {
	field, text := "jwt.key", []byte(j.Key.Text())
	if j.KeyFile != "" {
		field, text = "jwt.key_file", contents[0]
	}
	keys, err := parseKeys(algorithms()[j.Algorithms[0]], text)
	if err != nil {
		return nil, fault.Invalidf(field, nil, "%w", err)
	}
	verified := bounded.Shared[[sha256.Size]byte, caller](maxVerified)
	options := []jwt.ParserOption{
		jwt.WithValidMethods(j.Algorithms), jwt.WithAudience(j.Audience), jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway), jwt.WithTimeFunc(now), jwt.WithStrictDecoding(),
	}
	if j.Issuer != "" {
		options = append(options, jwt.WithIssuer(j.Issuer))
	}
	return &jwtVerifier{parser: jwt.NewParser(options...), keys: keys, now: now, verified: verified}, nil
}

// parseKeys parses keys of one kind.
func parseKeys(kind string, text []byte) (set jwt.VerificationKeySet, err error) {
	if kind == "hmac" {
		secret := bytes.TrimSpace(text)
		if len(secret) < minHMAC {
			return set, fault.New("", fault.Invalid, "must have at least %d bytes", minHMAC)
		}
		set.Keys = append(set.Keys, bytes.Clone(secret))
		return set, nil
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := parseKey(kind, block)
		if err != nil {
			return set, err
		}
		set.Keys = append(set.Keys, key)
	}
	if len(set.Keys) == 0 {
		return set, fault.New("", fault.Invalid, "must contain a public key in PEM")
	}
	return set, nil
}

func parseKey(kind string, block *pem.Block) (any, error) {
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = cert.PublicKey
		}
	default: // such as a private key
		return nil, fault.New("", fault.Invalid, "contains a %s: use public keys", block.Type)
	}
	if err != nil {
		return nil, fault.As("", fault.Invalid, err)
	}
	return key, fitsKind(key, kind)
}

func fitsKind(key any, kind string) error {
	got := "another"
	switch k := key.(type) {
	case *rsa.PublicKey:
		if got = "rsa"; k.N.BitLen() < minRSA {
			return fault.New("", fault.Invalid, "has an RSA key of %d bits: use at least %d", k.N.BitLen(), minRSA)
		}
	case *ecdsa.PublicKey:
		got = k.Curve.Params().Name
	case ed25519.PublicKey:
		got = "ed25519"
	}
	if got != kind {
		return fault.New("", fault.Invalid, "contains a key of kind %s, but the algorithms need %s", got, kind)
	}
	return nil
}

// jwtVerifier verifies JSON Web Tokens. It caches verified tokens, because clients send the same
// token with each call.
type jwtVerifier struct {
	parser   *jwt.Parser
	keys     jwt.VerificationKeySet
	now      func() time.Time
	verified *lru.Cache[[sha256.Size]byte, caller]
}

// claims are the claims that matter to this peer.
type claims struct {
	jwt.RegisteredClaims
	Role     *Role    `json:"role"`
	Services []string `json:"services"`
}

// UnmarshalJSON implements json.Unmarshaler. Names are exact and unique, to give a token one
// meaning. Unknown claims are ignored.
func (c *claims) UnmarshalJSON(text []byte) error {
	type plain claims
	return strictjson.DecodeOpen(text, maxToken, (*plain)(c))
}

var (
	errCritical = errors.New("the token has unknown critical extensions")
	errSubject  = errors.New("the token lacks a sub with 1 to 256 bytes")
	errServices = errors.New("the token has invalid service patterns")
	errExpired  = errors.New("the token has expired")
)

// verify implements proof.
func (v *jwtVerifier) verify(token string) (caller, error) {
	digest := sha256.Sum256([]byte(token))
	if c, ok := v.verified.Get(digest); ok {
		if v.now().Before(c.expires) {
			return c, nil
		}
		v.verified.Remove(digest)
		return caller{}, errExpired
	}
	var cl claims
	if _, err := v.parser.ParseWithClaims(token, &cl, v.key); err != nil {
		return caller{}, reason(err)
	}
	c, err := cl.caller()
	if err == nil {
		v.verified.Add(digest, c)
	}
	return c, err
}

// key returns the configured keys, whatever the token asks for: it never fetches a key named by "kid",
// "jku" or similar headers. It refuses critical extensions (RFC 7515, section 4.1.11).
func (v *jwtVerifier) key(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, errCritical
	}
	return v.keys, nil
}

func (c *claims) caller() (caller, error) {
	p := Principal{Name: c.Subject, Role: RoleService, Services: c.Services}
	switch {
	case p.Name == "" || len(p.Name) > maxName:
		return caller{}, errSubject
	case checkServices(c.Services) != nil:
		return caller{}, errServices
	case c.Role != nil:
		p.Role = *c.Role
	}
	if p.Role == RoleService && len(p.Services) == 0 {
		p.Services = own(p.Name)
	}
	return caller{Principal: p, expires: c.ExpiresAt.Add(leeway)}, nil
}

// own returns the services that names allow by default: the service of each name. Names with "*" or
// "/" are left out, because they must not become patterns.
func own(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" || strings.ContainsAny(name, "*/") })
}

// reason reduces an error of the library to its kind, because its text may quote the token.
func reason(err error) error {
	for _, known := range []error{
		errCritical, jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer,
		jwt.ErrTokenRequiredClaimMissing, jwt.ErrTokenUnverifiable, jwt.ErrTokenSignatureInvalid, jwt.ErrTokenMalformed,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return jwt.ErrTokenInvalidClaims
}
