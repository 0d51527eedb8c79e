package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// joinedFile holds, in a data directory, the network that its peer has joined by an invitation, or founded.
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

// Remember writes the network of these settings to their data directory, unless it has one: the identity, the group and the
// records of a directory belong to one network, so a later invitation to another one is refused before it changes anything.
func (c *Config) Remember() error {
	if _, err := os.Stat(filepath.Join(c.Data, joinedFile)); !errors.Is(err, fs.ErrNotExist) {
		return fault.As("config.Remember", fault.Invalid, err)
	}
	return Joined{Name: c.NetworkName(), Profile: c.Profile, Closed: c.Network.Closed}.Save(c.Data)
}

// joinedForm is the form of the file.
type joinedForm struct {
	Format  int `yaml:"format"`
	Network struct {
		Name   network.Name `yaml:"name"`
		Closed bool         `yaml:"closed,omitempty"`
	} `yaml:"network"`
	Profile   string   `yaml:"profile"`
	Bootstrap []string `yaml:"bootstrap"`
}

// Save writes the network to a data directory, whole or not at all.
func (j Joined) Save(dataDir string) error {
	const op = "config.Save"
	form := joinedForm{Format: joinedFormat, Profile: j.Profile, Bootstrap: j.Bootstrap}
	form.Network.Name, form.Network.Closed = j.Name, j.Closed
	text, err := yaml.Marshal(form)
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	f, err := os.CreateTemp(dataDir, ".network-*")
	if err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	defer os.Remove(f.Name()) // after the rename it does not exist
	_, err = f.WriteString("# The network of this peer. A start without --network stays in it.\n" + string(text))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dataDir, joinedFile))
	}
	return fault.As(op, fault.Internal, err)
}

// join adds the network of an invitation, or the one in the data directory, below the other layers.
func (s Source) join(c *Config, origin Origin) error {
	path := filepath.Join(c.Data, joinedFile)
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
		return fault.Invalidf(networkKey, string(joined.Name), "is the name in the invitation, but %s belongs to the network %q: leave out the invitation to stay there; another network needs another data directory, and so another identity", c.Data, saved.Name)
	case origin[networkKey] != "default" && c.Network.Name != string(joined.Name):
		return fault.Invalidf(networkKey, c.Network.Name, "%q contradicts the network %q of %s (set by %s)",
			c.Network.Name, joined.Name, from, origin[networkKey])
	case saved != nil && origin[networkKey] == "default" && origin["profile"] != "default" && c.Profile != saved.Profile && saved.Name == network.Default(saved.Profile):
		return fault.Invalidf("profile", c.Profile, "is the network %q, but %s belongs to the network %q of profile %s: "+
			"leave it out to stay there, or give this network a directory of its own, by --data DIRECTORY",
			c.NetworkName(), c.Data, saved.Name, saved.Profile)
	}
	set := func(key string, apply func()) {
		if origin[key] == "default" {
			origin[key] = from
			apply()
		}
	}
	set("profile", func() { c.Profile = joined.Profile })
	if c.NetworkName() != joined.Name { // a name that the profile means stays empty, as at the first start
		set(networkKey, func() { c.Network.Name = string(joined.Name) })
	}
	if len(joined.Bootstrap) > 0 {
		set("bootstrap", func() { c.Bootstrap = joined.Bootstrap })
	}
	if joined.Closed {
		set(closedKey, func() { c.Network.Closed = true })
	}
	return nil
}

// readJoined reads the file of a data directory; nil without one.
func readJoined(path string) (*Joined, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var any struct{ Format int }
	if err == nil {
		err = yaml.Unmarshal(text, &any)
	}
	if err != nil {
		return nil, fault.Invalidf("join", path, "%v", err)
	}
	if any.Format > joinedFormat {
		return nil, fault.New("config.join", fault.Unsupported, "the joined network in %s has format %d, this program reads formats 1 to %d: "+
			"run the later program again, or restore the directory from before its start", path, any.Format, joinedFormat)
	}
	var form joinedForm
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&form); err != nil || form.Network.Name.Validate() != nil || form.Format != joinedFormat || form.Profile == "" {
		return nil, fault.Invalidf("join", path, "%s is damaged: join the network again with an invitation, or remove the file", path)
	}
	return &Joined{Name: form.Network.Name, Profile: form.Profile, Bootstrap: form.Bootstrap, Closed: form.Network.Closed}, nil
}
