package identity_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
)

func newKey(t testing.TB) identity.Key {
	k, err := identity.NewKey(rand.Reader)
	require.NoError(t, err)
	return k
}

func TestKeyText(t *testing.T) {
	k := newKey(t)
	again, err := identity.ParseKey(k.Text())
	require.NoError(t, err)
	require.True(t, k.Equal(again))
	require.False(t, k.Equal(newKey(t)))
	require.False(t, k.Equal(nil))
	for _, bad := range []string{"", "x", k.Text()[1:], k.Text() + "A", strings.Repeat("!", 43), k.Text() + "="} {
		_, err := identity.ParseKey(bad)
		require.ErrorIs(t, err, fault.Invalid)
		if bad != "" {
			require.NotContains(t, err.Error(), bad)
		}
	}
}

func TestKeyFile(t *testing.T) {
	a, b := newKey(t), newKey(t)
	keys, err := identity.ParseKeys([]byte("\n" + a.Text() + "\r\n\n  " + b.Text()))
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.True(t, keys[0].Equal(a))
	require.True(t, keys[1].Equal(b))
	var many []string
	for range identity.MaxKeys + 1 {
		many = append(many, newKey(t).Text())
	}
	for text, why := range map[string]string{
		"":                         "holds no key",
		a.Text() + "\nrubbish":     "line 2",
		a.Text() + "\n" + a.Text(): "repeats",
		strings.Join(many, "\n"):   "too many",
		a.Text() + " " + b.Text():  "line 1",
	} {
		_, err := identity.ParseKeys([]byte(text))
		require.ErrorIs(t, err, fault.Invalid)
		require.ErrorContains(t, err, why)
		require.NotContains(t, err.Error(), a.Text())
	}
}

func TestKeyIsNeverPrinted(t *testing.T) {
	k := newKey(t)
	raw := k()
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "key", k, "in", struct{ K identity.Key }{k})
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "key", k)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		fmt.Fprintf(&b, verb, k)
		fmt.Fprintf(&b, verb, struct{ K identity.Key }{k})
	}
	text, err := json.Marshal(map[string]any{"key": k})
	require.NoError(t, err)
	b.Write(text)
	for _, form := range []string{k.Text(), fmt.Sprintf("%x", raw[:]), fmt.Sprint(raw[:])} {
		require.NotContains(t, b.String(), form)
	}
	require.Contains(t, b.String(), "[redacted]")
}

func TestPrivateKeysDiffer(t *testing.T) {
	k := newKey(t)
	a, err := k.Private("a")
	require.NoError(t, err)
	again, err := k.Private("a")
	require.NoError(t, err)
	b, err := k.Private("b")
	require.NoError(t, err)
	require.Equal(t, a, again)
	require.NotEqual(t, a, b)
	require.Len(t, a, identity.KeySize)
}

// TestProof: any difference in a challenge voids a proof, and the role of its peers counts.
func TestProof(t *testing.T) {
	old, k := newKey(t), newKey(t)
	nonce := func(b byte) []byte { return bytes.Repeat([]byte{b}, identity.NonceSize) }
	c := identity.Challenge{Network: "a", Verifier: "v", Prover: "p", Asked: nonce(1), Answered: nonce(2)}
	proof := c.Prove(k)
	require.True(t, c.Proved([]identity.Key{old, k}, proof).Equal(k))
	require.Nil(t, c.Proved([]identity.Key{old}, proof))
	require.Nil(t, c.Proved(nil, proof))
	require.Nil(t, c.Proved([]identity.Key{k}, nil))
	for name, edit := range map[string]func(*identity.Challenge){
		"network":  func(c *identity.Challenge) { c.Network = "b" },
		"roles":    func(c *identity.Challenge) { c.Verifier, c.Prover = c.Prover, c.Verifier },
		"prover":   func(c *identity.Challenge) { c.Prover = "q" },
		"verifier": func(c *identity.Challenge) { c.Verifier = "w" },
		"asked":    func(c *identity.Challenge) { c.Asked = nonce(3) },
		"answered": func(c *identity.Challenge) { c.Answered = nonce(3) },
		"nonces":   func(c *identity.Challenge) { c.Asked, c.Answered = c.Answered, c.Asked },
	} {
		other := c
		edit(&other)
		require.Nil(t, other.Proved([]identity.Key{k}, proof), name)
	}
	short := c
	short.Answered = nil
	require.Nil(t, short.Proved([]identity.Key{k}, short.Prove(k)), "a prover without a nonce of its own")
}
