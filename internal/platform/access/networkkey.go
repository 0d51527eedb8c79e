package access

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// NetworkKeys are the keys of this peer's network in a file: after a first line with the version, one in each line.
// The first one proves, and all are accepted. A changed file applies to the next use a second later; the old keys stay in use until it is valid.
type NetworkKeys struct{ file *reloadable[[]identity.Key] }

// OpenNetworkKeys reads a file of keys. A missing file means no key now; NetworkKeys never reads it again. Errors:
// Invalid with field "network.key" for a malformed file, and for one that other users can read.
func OpenNetworkKeys(path string, o Options) (*NetworkKeys, error) {
	o = o.withDefaults()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return &NetworkKeys{}, nil
	}
	r := &reloadable[[]identity.Key]{
		files: []file{networkKeyFile(path)}, now: o.Now, log: o.Logger,
		parse: func(contents [][]byte) ([]identity.Key, error) { return parseNetworkKeys(path, contents[0]) },
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	return &NetworkKeys{file: r}, nil
}

func networkKeyFile(path string) file {
	return file{setting: networkKeySetting, path: path, private: true}
}

// networkKeySetting names the file in errors.
const networkKeySetting = "network.key"

// networkKeyFormat is the version of the file.
func networkKeyFormat() store.Format[[]byte] { return store.Format[[]byte]{Name: "network key"} }

func parseNetworkKeys(path string, file []byte) (keys []identity.Key, err error) {
	text, _, err := networkKeyFormat().Unseal(path, file)
	if err == nil {
		keys, err = identity.ParseKeys(text)
	}
	return keys, fault.In(networkKeySetting, err)
}

// Get returns the present keys; none without a file. The caller must not change them.
func (k *NetworkKeys) Get() []identity.Key {
	if k.file == nil {
		return nil
	}
	return *k.file.get()
}

// ReadNetworkKeys reads a file of keys once. Errors: NotFound without a file; as OpenNetworkKeys.
func ReadNetworkKeys(path string) ([]identity.Key, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New("", fault.NotFound, "%s does not exist", path)
	}
	text, err := networkKeyFile(path).read()
	if err != nil {
		return nil, err
	}
	return parseNetworkKeys(path, text)
}

// ReadPlainKey reads the text of one key from a file that an operator made. Errors: Invalid with field "network.key_file".
func ReadPlainKey(path string) (identity.Key, error) {
	const setting = "network.key_file"
	text, err := file{setting: setting, path: path, private: true}.read()
	if err != nil {
		return nil, err
	}
	key, err := identity.ParseKey(strings.TrimSpace(string(text)))
	return key, fault.In(setting, err)
}

// CreateNetworkKey writes a key to a new file of mode 0600, durably and whole or not at all. Error: Exists for a file
// that exists.
func CreateNetworkKey(path string, k identity.Key) error {
	const op = "access.CreateNetworkKey"
	err := store.WriteNew(path, networkKeyFormat().Seal([]byte(k.Text()+"\n")))
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault.New(op, fault.Exists, "%s exists", path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return fault.As(op, fault.Invalid, err)
	}
	return fault.As(op, fault.Internal, err)
}
