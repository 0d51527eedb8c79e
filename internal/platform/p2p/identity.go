package p2p

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxIdentityBytes bounds the key file; an Ed25519 key takes 68 bytes.
const maxIdentityBytes = 4 << 10

// LoadIdentity reads this peer's private key, and creates an Ed25519 key with mode 0600
// when the file does not exist. The file appears complete or not at all; of two processes
// that create it at once, both get the key of the one that was first.
//
// Errors: Forbidden when group or others may read or write the file, Unauthentic when it
// holds no Ed25519 key, Invalid for an empty path.
func LoadIdentity(path string) (crypto.PrivKey, error) {
	const op = "p2p.LoadIdentity"
	if path == "" {
		return nil, fault.In("identity", fault.New(op, fault.Invalid, "no path"))
	}
	key, err := readIdentity(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = createIdentity(path)
	}
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	return key, nil
}

func readIdentity(path string) (crypto.PrivKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: no window between check and read
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New("", fault.Forbidden, "%s is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fault.New("", fault.Forbidden, "%s has mode %#o; the key must be private: chmod 600 it", path, perm)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIdentityBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxIdentityBytes {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, maxIdentityBytes)
	}
	key, err := crypto.UnmarshalPrivateKey(data)
	if err != nil {
		// The library's error may quote the content: it stays out.
		return nil, fault.New("", fault.Unauthentic, "%s holds no libp2p private key", path)
	}
	if key.Type() != crypto.Ed25519 {
		return nil, fault.New("", fault.Unauthentic, "%s holds a key of type %s; Ed25519 only", path, key.Type())
	}
	return key, nil
}

// createIdentity writes a new key beside path and links it into place: a link, unlike a
// rename, fails when another process was faster, whose key then is the one to use.
func createIdentity(path string) (crypto.PrivKey, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	data, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	tmp, err := writePrivate(dir, data)
	if tmp != "" {
		defer os.Remove(tmp)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Link(tmp, path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return readIdentity(path)
		}
		return nil, err
	}
	return key, syncDir(dir)
}

// writePrivate puts data on disk in a new file of mode 0600 (os.CreateTemp's) and
// returns its name, also on failure if there is a file to remove.
func writePrivate(dir string, data []byte) (string, error) {
	f, err := os.CreateTemp(dir, ".identity-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return f.Name(), errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
