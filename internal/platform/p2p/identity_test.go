package p2p

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestLoadIdentityCreatesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "identity.key")
	const racers = 16
	keys := make([]crypto.PrivKey, racers)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key, err := LoadIdentity(path)
			if err == nil {
				keys[i] = key
			}
		})
	}
	all.Wait()
	for _, k := range keys {
		require.NotNil(t, k)
		require.True(t, k.Equals(keys[0]), "all concurrent callers get the same key")
	}
	require.Equal(t, crypto.Ed25519, int(keys[0].Type()))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

func TestLoadIdentityRefuses(t *testing.T) {
	secp, _, err := crypto.GenerateSecp256k1Key(rand.Reader)
	require.NoError(t, err)
	foreign, err := crypto.MarshalPrivateKey(secp)
	require.NoError(t, err)
	own, err := crypto.MarshalPrivateKey(testKey(t))
	require.NoError(t, err)
	bare := own
	own, foreign = identityFormat().Seal(own), identityFormat().Seal(foreign)
	later := []byte("identity of a peer, format 2\nof another form")
	for name, c := range map[string]struct {
		data []byte
		mode os.FileMode
		kind fault.Kind
	}{
		"readable by others":   {own, 0o644, fault.Forbidden},
		"readable by group":    {own, 0o640, fault.Forbidden},
		"writable by others":   {own, 0o602, fault.Forbidden},
		"empty":                {nil, 0o600, fault.Unauthentic},
		"garbage":              {[]byte("not a key"), 0o600, fault.Unauthentic},
		"cut short":            {own[:30], 0o600, fault.Unauthentic},
		"another kind of key":  {foreign, 0o600, fault.Unauthentic},
		"without a version":    {bare, 0o600, fault.Unauthentic},
		"a later version":      {later, 0o600, fault.Unsupported},
		"larger than any key":  {make([]byte, maxIdentityBytes+1), 0o600, fault.TooLarge},
		"good, and owner only": {own, 0o400, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			require.NoError(t, os.WriteFile(path, c.data, 0o600))
			require.NoError(t, os.Chmod(path, c.mode))
			_, err := LoadIdentity(path)
			if c.kind == fault.Internal {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.kind)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, len(c.data), len(after), "nothing changed")
		})
	}
	_, err = LoadIdentity("")
	require.Equal(t, "identity", fault.FieldOf(err))
	_, err = LoadIdentity(t.TempDir())
	require.ErrorIs(t, err, fault.Forbidden)
}

// No damaged byte of the file goes unnoticed.
func TestLoadIdentityRefusesEachDamagedByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.key")
	_, err := LoadIdentity(path)
	require.NoError(t, err)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	digit := bytes.IndexByte(whole, '\n') - 1 // of the version
	for i := range whole {
		for bit := range 8 {
			damaged := bytes.Clone(whole)
			damaged[i] ^= 1 << bit
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			_, err := LoadIdentity(path)
			require.Contains(t, []fault.Kind{fault.Unauthentic, fault.Unsupported}, fault.KindOf(err), "byte %d, bit %d", i, bit)
			require.True(t, fault.KindOf(err) == fault.Unauthentic || i == digit, "byte %d, bit %d", i, bit)
			require.ErrorContains(t, err, path)
			require.NotContains(t, err.Error(), string(whole[digit+6:digit+38]), "no key material")
		}
	}
	require.NoError(t, os.WriteFile(path, append(bytes.Clone(whole), 0), 0o600))
	_, err = LoadIdentity(path)
	require.ErrorIs(t, err, fault.Unauthentic)
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	_, err = LoadIdentity(path)
	require.NoError(t, err)
}
