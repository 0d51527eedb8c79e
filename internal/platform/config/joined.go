package config

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// joinedFile holds, in a data directory, the network that its peer has joined by an invitation.
const joinedFile = "network.yaml"

// joinedFormat is the version of the file, under the key "format".
const joinedFormat = 1

// Joined is what an invitation says of a network. It is a layer of settings above the defaults: all other layers
// override the rest, and none may name another network.
type Joined struct {
	Name      network.Name
	Profile   string
	Bootstrap []string
	Closed    bool
}

// Save writes the network to a data directory, whole or not at all.
func (j Joined) Save(dataDir string) error {
	const op = "config.Save"
	var b strings.Builder
	b.WriteString("# The network that this peer has joined by an invitation.\nformat: " + strconv.Itoa(joinedFormat) + "\nnetwork:\n  name: " + string(j.Name) + "\n")
	if j.Closed {
		b.WriteString("  closed: true\n")
	}
	b.WriteString("profile: " + j.Profile + "\nbootstrap:\n")
	for _, a := range j.Bootstrap {
		b.WriteString("  - " + a + "\n")
	}
	f, err := os.CreateTemp(dataDir, ".network-*")
	if err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	defer os.Remove(f.Name()) // after the rename it does not exist
	_, err = f.WriteString(b.String())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dataDir, joinedFile))
	}
	return fault.As(op, fault.Internal, err)
}

// join adds the network of an invitation, or the one in the data directory, below the merged layers.
func (s Source) join(merged *koanf.Koanf, origin Origin) error {
	dir := cmp.Or(s.Data, Default().Data)
	if merged.Exists("data") {
		dir = merged.String("data")
	}
	path := filepath.Join(dir, joinedFile)
	saved, err := readJoined(path)
	if err != nil {
		return err
	}
	from := "file " + path
	joined := saved
	if s.Joined != nil {
		joined, from = s.Joined, "the invitation"
	}
	switch {
	case joined == nil:
		return nil
	case saved != nil && saved.Name != joined.Name:
		return fault.Invalidf(networkKey, string(joined.Name), "is the name in the invitation, but %s belongs to the network %q: use another data directory", dir, saved.Name)
	case merged.Exists(networkKey) && merged.String(networkKey) != string(joined.Name):
		return fault.Invalidf(networkKey, merged.String(networkKey), "%q contradicts the network %q of %s (set by %s)",
			merged.String(networkKey), joined.Name, from, origin[networkKey])
	}
	settings := map[string]any{networkKey: string(joined.Name), "profile": joined.Profile, "bootstrap": joined.Bootstrap}
	if joined.Closed {
		settings[closedKey] = true
	}
	for key, value := range settings {
		if merged.Exists(key) {
			continue
		}
		origin[key] = from
		if err := merged.Set(key, value); err != nil {
			return fault.As("config.join", fault.Internal, err)
		}
	}
	return nil
}

// readJoined reads the file of a data directory; nil without one.
func readJoined(path string) (*Joined, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return nil, fault.Invalidf("join", path, "%v", err)
	}
	j := &Joined{Name: network.Name(k.String(networkKey)), Profile: k.String("profile"), Bootstrap: k.Strings("bootstrap"), Closed: k.Bool(closedKey)}
	if is := k.Int("format"); is > joinedFormat {
		return nil, fault.New("config.join", fault.Unsupported, "the joined network in %s has format %d, this program reads formats 1 to %d: "+
			"run the later program again, or restore the directory from before its start", path, is, joinedFormat)
	}
	keys := 4
	if j.Closed {
		keys++
	}
	if err := j.Name.Validate(); err != nil || k.Int("format") != joinedFormat || len(k.Keys()) != keys {
		return nil, fault.Invalidf("join", path, "%s is damaged: join the network again with an invitation, or remove the file", path)
	}
	return j, nil
}
