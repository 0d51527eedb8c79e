package p2p

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxIdentityBytes bounds the key file; an Ed25519 key takes 68 bytes.
const maxIdentityBytes = 4 << 10

// identityFormat is the version of the key file: libp2p's encoding of a private key after the first line.
func identityFormat() store.Format[[]byte] { return store.Format[[]byte]{Name: "identity of a peer"} }

// LoadIdentity reads this peer's private key. Without a file, it creates an Ed25519 key with mode 0600. Creation
// is atomic: two concurrent processes both return the key of the first.
//
// Errors: Forbidden for a file with permissions for group or others, Unauthentic for a file without an Ed25519
// key or with a damaged one, Unsupported for a file of a later version, Invalid for an empty path.
func LoadIdentity(path string) (crypto.PrivKey, error) {
	const op = "p2p.LoadIdentity"
	if path == "" {
		return nil, fault.In("identity", fault.New(op, fault.Invalid, "the path of the identity file is empty"))
	}
	key, err := readIdentity(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = createIdentity(path)
	}
	if err != nil {
		return nil, fault.Wrap(op, store.Place{
			Name: identityFormat().Name, Path: path, Effect: "this peer does not start",
			Remedy: "Restore it from a backup; or " + store.Aside(filepath.Dir(path)) + ", start, and join the network again: it becomes a new peer",
		}.Refused(err))
	}
	return key, nil
}

func readIdentity(path string) (crypto.PrivKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file, so that check and read see the same file
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New("", fault.Forbidden, "%s is not a regular file: use a key file of this user", path)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fault.Problem{
			What: fmt.Sprintf("%s has mode %#o", path, perm), Effect: "other users can read this peer's key", Remedy: "`chmod 600 " + path + "`",
		}.Err(fault.Forbidden, nil)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIdentityBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxIdentityBytes {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, maxIdentityBytes)
	}
	if data, _, err = identityFormat().Unseal(path, data); err != nil {
		if fault.KindOf(err) == fault.Invalid {
			err = fault.As("", fault.Unauthentic, err)
		}
		return nil, err
	}
	key, err := crypto.UnmarshalPrivateKey(data)
	if err != nil {
		// The library's error may contain key material, so it is dropped.
		return nil, fault.New("", fault.Unauthentic, "%s does not contain a libp2p private key", path)
	}
	if key.Type() != crypto.Ed25519 {
		return nil, fault.New("", fault.Unauthentic, "%s contains a key of type %s: only Ed25519 keys are supported", path, key.Type())
	}
	if !intact(key, data) {
		return nil, fault.New("", fault.Unauthentic, "%s is no whole key: its public part does not belong to the private one", path)
	}
	return key, nil
}

// intact reports whether data is the encoding of an Ed25519 key whose public part belongs to its seed. The library
// checks neither: with a damaged public part the peer would sign records that nobody accepts.
func intact(key crypto.PrivKey, data []byte) bool {
	raw, err := key.Raw() // seed, then public key
	if err != nil || len(raw) != ed25519.PrivateKeySize || !bytes.Equal(raw, ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize])) {
		return false
	}
	canonical, err := crypto.MarshalPrivateKey(key)
	return err == nil && bytes.Equal(canonical, data)
}

// createIdentity writes a new key, or returns the key of a faster process.
func createIdentity(path string) (crypto.PrivKey, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	data, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err = store.WriteNew(path, identityFormat().Seal(data)); errors.Is(err, fs.ErrExist) {
		return readIdentity(path)
	}
	return key, err
}
