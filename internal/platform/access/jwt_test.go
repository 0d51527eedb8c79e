package access

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

const hmacKey = "0123456789abcdef0123456789abcdef"

func hs256() Config {
	return Config{Enabled: true, Method: MethodJWT, JWT: JWT{
		Algorithms: []string{"HS256"}, Key: secret.New(hmacKey), Audience: "blackhole", Issuer: "https://issuer",
	}}
}

// good returns valid claims for an hour.
func good() jwt.MapClaims {
	return jwt.MapClaims{"sub": "web", "aud": "blackhole", "iss": "https://issuer", "exp": start().Add(time.Hour).Unix()}
}

func with(changes jwt.MapClaims) jwt.MapClaims {
	c := good()
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func sign(t testing.TB, m jwt.SigningMethod, key any, c jwt.MapClaims, header ...string) string {
	t.Helper()
	token := jwt.NewWithClaims(m, c)
	for i := 0; i < len(header); i += 2 {
		token.Header[header[i]] = header[i+1]
	}
	text, err := token.SignedString(key)
	require.NoError(t, err)
	return text
}

func TestJWT(t *testing.T) {
	var at clock
	g := newGuard(t, hs256(), Options{Now: at.now})
	hs := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, []byte(hmacKey), c) }
	for name, c := range map[string]struct {
		claims jwt.MapClaims
		want   Principal
	}{
		"name":        {good(), Principal{"web", RoleService, []string{"web"}}},
		"audiences":   {with(jwt.MapClaims{"aud": []string{"other", "blackhole"}}), Principal{"web", RoleService, []string{"web"}}},
		"services":    {with(jwt.MapClaims{"services": []string{"api", "web-*"}}), Principal{"web", RoleService, []string{"api", "web-*"}}},
		"no patterns": {with(jwt.MapClaims{"sub": "*"}), Principal{"*", RoleService, []string{}}},
		"namespace":   {with(jwt.MapClaims{"sub": "prod/web"}), Principal{"prod/web", RoleService, []string{}}},
		"role":        {with(jwt.MapClaims{"role": "service"}), Principal{"web", RoleService, []string{"web"}}},
		"admin":       {with(jwt.MapClaims{"role": "admin"}), Principal{"web", RoleAdmin, nil}},
		"reader":      {with(jwt.MapClaims{"role": "read-only"}), Principal{"web", RoleReadOnly, nil}},
		"nobody":      {with(jwt.MapClaims{"role": "none"}), Principal{"web", RoleNone, nil}},
		"skew":        {with(jwt.MapClaims{"exp": start().Add(-29 * time.Second).Unix()}), Principal{"web", RoleService, []string{"web"}}},
	} {
		got, err := g.identify(callCredentials{authorization: []string{"Bearer " + hs(c.claims)}})
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.Principal, name)
	}
}

// TestJWTRefuses has one case for every attack.
func TestJWTRefuses(t *testing.T) {
	var at clock
	var log journal
	g := newGuard(t, hs256(), Options{Now: at.now, Logger: log.logger()})
	key := []byte(hmacKey)
	hs := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, key, c) }
	valid := hs(good())
	parts := strings.Split(valid, ".")
	for name, token := range map[string]string{
		"no algorithm":       sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good()),
		"algorithm not ours": sign(t, jwt.SigningMethodHS512, key, good()),
		"other key":          sign(t, jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), good()),
		"other audience":     hs(with(jwt.MapClaims{"aud": "other"})),
		"no audience":        hs(with(jwt.MapClaims{"aud": nil})),
		"other issuer":       hs(with(jwt.MapClaims{"iss": "https://other"})),
		"no issuer":          hs(with(jwt.MapClaims{"iss": nil})),
		"expired":            hs(with(jwt.MapClaims{"exp": start().Add(-30 * time.Second).Unix()})),
		"never expires":      hs(with(jwt.MapClaims{"exp": nil})),
		"not yet":            hs(with(jwt.MapClaims{"nbf": start().Add(time.Minute).Unix()})),
		"nobody":             hs(with(jwt.MapClaims{"sub": nil})),
		"long name":          hs(with(jwt.MapClaims{"sub": strings.Repeat("n", 257)})),
		"unknown role":       hs(with(jwt.MapClaims{"role": "root"})),
		"role of a number":   hs(with(jwt.MapClaims{"role": 3})),
		"wrong pattern":      hs(with(jwt.MapClaims{"services": []string{"a*b"}})),
		"services no list":   hs(with(jwt.MapClaims{"services": "*"})),
		"critical":           sign(t, jwt.SigningMethodHS256, key, good(), "crit", "x"),
		"no signature":       parts[0] + "." + parts[1] + ".",
		"two parts":          parts[0] + "." + parts[1],
		"four parts":         valid + ".x",
		"other claims":       parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"admin"}`)) + "." + parts[2],
		"padded":             valid + "=",
		"empty":              "..",
		"large":              strings.Repeat("a", maxToken),
	} {
		_, err := g.identify(callCredentials{authorization: []string{"Bearer " + token}})
		require.ErrorIs(t, err, fault.Unauthentic, name)
		require.NotContains(t, log.String(), token, name)
	}
	// A key named in a header is never fetched.
	_, err := g.identify(callCredentials{authorization: []string{"Bearer " + sign(t, jwt.SigningMethodHS256, key, good(), "kid", "../../dev/null", "jku", "http://127.0.0.1:1/")}})
	require.NoError(t, err)
}

// TestJWTClaimsHaveOneMeaning: a claim given twice is refused, and a claim in other case ignored.
func TestJWTClaimsHaveOneMeaning(t *testing.T) {
	var at clock
	g := newGuard(t, hs256(), Options{Now: at.now})
	signed := func(extra string) string {
		payload := fmt.Sprintf(`{"sub":"web","aud":"blackhole","iss":"https://issuer","exp":%d%s}`, start().Add(time.Hour).Unix(), extra)
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		signature, err := jwt.SigningMethodHS256.Sign(text, []byte(hmacKey))
		require.NoError(t, err)
		return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(signature)
	}
	got, err := g.identify(callCredentials{authorization: []string{signed(`,"ROLE":"admin","SUB":"root","other":{"a":1}`)}})
	require.NoError(t, err)
	require.Equal(t, Principal{"web", RoleService, []string{"web"}}, got.Principal)
	for _, extra := range []string{`,"sub":"root"`, `,"role":"service","role":"admin"`, `,"other":{"a":1,"a":2}`, `,"services":[null]`} {
		_, err := g.identify(callCredentials{authorization: []string{signed(extra)}})
		require.ErrorIs(t, err, fault.Unauthentic, extra)
	}
}

func TestJWTExpiresThoughRemembered(t *testing.T) {
	var at clock
	g := newGuard(t, hs256(), Options{Now: at.now})
	header := "Bearer " + sign(t, jwt.SigningMethodHS256, []byte(hmacKey), good())
	require.Equal(t, 200, ask(g, "POST", "/?service=web", header).Code)
	at.advance(time.Hour + leeway - time.Nanosecond)
	require.Equal(t, 200, ask(g, "POST", "/?service=web", header).Code)
	require.Equal(t, 403, ask(g, "POST", "/?service=api", header).Code)
	at.advance(time.Nanosecond)
	require.Equal(t, 401, ask(g, "POST", "/?service=web", header).Code)
	require.Equal(t, 401, ask(g, "POST", "/?service=web", header).Code)
}

// TestLongCallsEndWithTheirProof: a watch ends when its token expires.
func TestLongCallsEndWithTheirProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, hs256(), Options{})
		until := time.Now().Add(time.Hour)
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+sign(t, jwt.SigningMethodHS256, []byte(hmacKey), with(jwt.MapClaims{"exp": until.Unix()})))
		g.HTTP(needs(r), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), refuse).
			ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, until.Add(leeway).Unix(), time.Now().Unix())
	})
}

func publicPEM(t testing.TB, keys ...any) []byte {
	t.Helper()
	var text []byte
	for _, k := range keys {
		der, err := x509.MarshalPKIXPublicKey(k)
		require.NoError(t, err)
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	return text
}

func TestJWTPublicKeys(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	edPublic, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(p256)
	require.NoError(t, err)
	keys := map[string]struct {
		private, public any
		method          jwt.SigningMethod
	}{
		"RS256": {rsaKey, rsaKey.Public(), jwt.SigningMethodRS256},
		"PS512": {rsaKey, rsaKey.Public(), jwt.SigningMethodPS512},
		"ES256": {p256, p256.Public(), jwt.SigningMethodES256},
		"ES384": {p384, p384.Public(), jwt.SigningMethodES384},
		"EdDSA": {edKey, edPublic, jwt.SigningMethodEdDSA},
	}
	var at clock
	for alg, k := range keys {
		c := hs256()
		c.JWT.Algorithms, c.JWT.Key = []string{alg}, secret.New(string(publicPEM(t, k.public)))
		g := newGuard(t, c, Options{Now: at.now})
		_, err := g.identify(callCredentials{authorization: []string{"Bearer " + sign(t, k.method, k.private, good())}})
		require.NoError(t, err, alg)
		for other, o := range keys {
			if other == alg {
				continue
			}
			_, err := g.identify(callCredentials{authorization: []string{"Bearer " + sign(t, o.method, o.private, good())}})
			require.ErrorIs(t, err, fault.Unauthentic, "%s with a token of %s", alg, other)
		}
		// The public key as the secret of an HMAC.
		_, err = g.identify(callCredentials{authorization: []string{"Bearer " + sign(t, jwt.SigningMethodHS256, publicPEM(t, k.public), good())}})
		require.ErrorIs(t, err, fault.Unauthentic, alg)
	}
	short, err := x509.ParsePKCS1PrivateKey(shortRSA(t))
	require.NoError(t, err)
	for name, wrong := range map[string][]byte{
		"other kind": publicPEM(t, rsaKey.Public()), "other curve": publicPEM(t, p384.Public()), "one of two": publicPEM(t, p256.Public(), edPublic),
		"private": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "no PEM": []byte("key"),
		"broken": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte{1}}), "short": publicPEM(t, short.Public()),
	} {
		c := hs256()
		c.JWT.Algorithms, c.JWT.Key = []string{"ES256"}, secret.New(string(wrong))
		if name == "short" {
			c.JWT.Algorithms = []string{"RS256"}
		}
		_, err := New(c, Options{})
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Op: "access.New", Field: "jwt.key"}, name)
	}
}

// shortRSA is a key of 1024 bits, which the library makes no more.
func shortRSA(t testing.TB) []byte {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	require.NoError(t, err)
	return x509.MarshalPKCS1PrivateKey(key)
}

func TestJWTKeysRotate(t *testing.T) {
	var at clock
	old, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	path := write(t, filepath.Join(t.TempDir(), "keys.pem"), publicPEM(t, old.Public()))
	c := hs256()
	c.JWT.Algorithms, c.JWT.Key, c.JWT.KeyFile = []string{"ES256"}, nil, path
	g := newGuard(t, c, Options{Now: at.now})
	opens := func(key *ecdsa.PrivateKey) bool {
		_, err := g.identify(callCredentials{authorization: []string{"Bearer " + sign(t, jwt.SigningMethodES256, key, good())}})
		return err == nil
	}
	require.True(t, opens(old))
	require.False(t, opens(next))
	for _, step := range []struct {
		file      []byte
		old, next bool
	}{
		{publicPEM(t, old.Public(), next.Public()), true, true},
		{publicPEM(t, next.Public()), false, true},
		{[]byte("half a fi"), false, true},
	} {
		write(t, path, step.file)
		at.advance(pollEvery)
		require.Equal(t, step.old, opens(old))
		require.Equal(t, step.next, opens(next))
	}
}

// FuzzJWT: a token opens only with the signature of the key over what it says, and what it says
// is in force.
func FuzzJWT(f *testing.F) {
	g, err := New(hs256(), Options{Now: start})
	require.NoError(f, err)
	for _, c := range []jwt.MapClaims{good(), with(jwt.MapClaims{"role": "admin"}), with(jwt.MapClaims{"exp": nil}), with(jwt.MapClaims{"aud": []string{"x"}})} {
		f.Add(sign(f, jwt.SigningMethodHS256, []byte(hmacKey), c))
	}
	f.Add(sign(f, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good()))
	f.Add("e30.e30.")
	f.Add("a.b.c.d")
	f.Fuzz(func(t *testing.T, token string) {
		// Try the token unchanged and with correctly signed claims.
		resigned := token
		if parts := strings.SplitN(token, ".", 3); len(parts) == 3 {
			head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`))
			text := head + "." + base64.RawURLEncoding.EncodeToString([]byte(parts[1]))
			mac := hmac.New(sha256.New, []byte(hmacKey))
			fmt.Fprint(mac, text)
			resigned = text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
		}
		for _, token := range []string{token, resigned} {
			c, err := g.identify(callCredentials{authorization: []string{"Bearer " + token}})
			if err != nil {
				require.ErrorIs(t, err, fault.Unauthentic)
				continue
			}
			requireInForce(t, token, c)
		}
	})
}

// requireInForce checks an admitted token by hand.
func requireInForce(t *testing.T, token string, c caller) {
	t.Helper()
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	mac := hmac.New(sha256.New, []byte(hmacKey))
	fmt.Fprint(mac, parts[0]+"."+parts[1])
	got, err := base64.RawURLEncoding.DecodeString(parts[2])
	require.NoError(t, err)
	require.True(t, hmac.Equal(mac.Sum(nil), got))
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	var said struct {
		Sub string  `json:"sub"`
		Iss string  `json:"iss"`
		Exp float64 `json:"exp"`
		Aud any     `json:"aud"`
	}
	require.NoError(t, json.Unmarshal(text, &said))
	require.Equal(t, said.Sub, c.Name)
	require.NotEmpty(t, said.Sub)
	require.Equal(t, "https://issuer", said.Iss)
	require.Contains(t, fmt.Sprint(said.Aud), "blackhole")
	require.Greater(t, said.Exp+leeway.Seconds(), float64(start().Unix()))
}
