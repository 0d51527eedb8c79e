package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Prefix begins the name of every environment variable: BLACKHOLE_DISCOVERY_RECORD_TTL sets
// the key discovery.record_ttl.
const Prefix = environ.Prefix

// Origin maps a key to the layer that set it: "default", "file PATH", "environment variable
// BLACKHOLE_...", "flag --...".
type Origin map[string]string

// of returns the layers that set a field: a key, a part of a key, or a section.
func (o Origin) of(field string) string {
	var layers []string
	for _, key := range Keys() {
		part, whole := strings.HasPrefix(field, key+".") || strings.HasPrefix(field, key+"["), strings.HasPrefix(key, field+".")
		if layer := o[key]; (key == field || part || whole) && layer != "default" && !slices.Contains(layers, layer) {
			layers = append(layers, layer)
		}
	}
	if len(layers) == 0 {
		return "default"
	}
	return strings.Join(layers, ", ")
}

// Source are the layers above the defaults.
type Source struct {
	File    string         // path of a YAML file; empty means no file
	Environ []string       // in the form of os.Environ
	Flags   map[string]any // values of set flags, by flag: a key, or network for network.name, name for connections.name
	Data    string         // default data directory; empty: the one of Default
	Joined  *Joined        // of an invitation used now; nil: of the data directory, if it has joined a network
}

// A peer has one network and one name, so they have the short flags --network and --name, and the short variables
// BLACKHOLE_NETWORK and BLACKHOLE_NAME.
const (
	networkFlag = "network"
	networkKey  = "network.name"
	closedKey   = "network.closed"
	nameFlag    = "name"
	nameKey     = "connections.name"
	expectFlag  = "expect"
	expectKey   = "coordination.expect"
)

// Load applies the layers and validates the result. Errors: Invalid, with the key and the
// layer that set it.
func Load(src Source) (Config, Origin, error) {
	c, origin := Default(), Origin{}
	c.Data = cmp.Or(src.Data, c.Data)
	for _, key := range Keys() {
		origin[key] = "default"
	}
	for _, apply := range []func(*Config, Origin) error{src.file, src.environ, src.flags, src.expand, src.join} {
		if err := apply(&c, origin); err != nil {
			return Config{}, nil, fault.Wrap("config.Load", err)
		}
	}
	if err := c.Validate(); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", fmt.Errorf("%w (set by %s)", err, origin.of(fault.FieldOf(err))))
	}
	return c, origin, nil
}

func (s Source) file(c *Config, origin Origin) error {
	if s.File == "" {
		return nil
	}
	text, err := os.ReadFile(s.File)
	if err != nil {
		return fault.Invalidf("config", s.File, "%v", err)
	}
	var root yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err = documents.Decode(&root); errors.Is(err, io.EOF) { // an empty file
		err = nil
	}
	if err == nil && !errors.Is(documents.Decode(new(yaml.Node)), io.EOF) {
		err = errors.New("has more than one document: remove the line ---")
	}
	if err == nil && len(root.Content) == 1 {
		_, err = section(root.Content[0])
		root = *root.Content[0]
	}
	if err != nil {
		return fault.Invalidf("config", s.File, "%s: %v", s.File, err)
	}
	l := layer{name: "file " + s.File, environ: s.lookup()}
	if err := l.apply("", &root, c, origin); err != nil || l.literal == "" {
		return err
	}
	return private(s.File, l.literal)
}

// private refuses a settings file that others may read or write, because it has a secret.
func private(path, secret string) error {
	info, err := os.Stat(path)
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		err = fault.Invalidf(secret, nil, "is a secret in %s, which has mode %04o: allow only its owner (chmod 600), or write ${NAME} of an environment variable",
			path, info.Mode().Perm())
	}
	return err
}

// environ applies the variables with Prefix and the variables with special names. An underscore
// separates words or levels; the known keys decide which. If both names of a key are set, the
// one with Prefix applies.
func (s Source) environ(c *Config, origin Origin) error {
	names, given := variables(), s.lookup()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		key, ok := names[name]
		switch _, both := given[variable(key)]; {
		case ok && both && name != variable(key), !ok && !strings.HasPrefix(name, Prefix):
			continue
		case !ok && environ.IsForeign(given, name):
			continue
		case !ok:
			key = strings.ToLower(strings.TrimPrefix(name, Prefix)) // unknown: apply reports the key
		}
		l := layer{name: "environment variable " + name}
		if err := l.apply(key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: given[name]}, c, origin); err != nil {
			return err
		}
	}
	return nil
}

// Expand puts the home of a user in the place of a first ~, as a shell does. Without a home the path stays as it is.
func Expand(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && home != "" && (rest == "" || rest[0] == '/' || os.IsPathSeparator(rest[0])) {
		return home + rest
	}
	return path
}

// expand expands all paths.
func (s Source) expand(c *Config, _ Origin) error {
	home := s.lookup()["HOME"]
	paths := []*string{&c.Data, &c.Unix, &c.Network.KeyFile, &c.Auth.TokenFile, &c.Auth.CACert, &c.Auth.ServerCert, &c.Auth.ServerKey, &c.Auth.JWT.KeyFile}
	for i := range c.Auth.Tokens {
		paths = append(paths, &c.Auth.Tokens[i].TokenFile)
	}
	for _, path := range paths {
		*path = Expand(*path, home)
	}
	return nil
}

// lookup returns the environment as a map.
func (s Source) lookup() map[string]string {
	values := map[string]string{}
	for _, pair := range s.Environ {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	return values
}

func (s Source) flags(c *Config, origin Origin) error {
	keys := map[string]string{networkFlag: networkKey, nameFlag: nameKey, expectFlag: expectKey}
	for _, flag := range slices.Sorted(maps.Keys(s.Flags)) {
		var n yaml.Node
		if err := n.Encode(s.Flags[flag]); err != nil {
			return fault.Invalidf(flag, nil, "%v", err)
		}
		l := layer{name: "flag --" + flag}
		if err := l.apply(cmp.Or(keys[flag], flag), &n, c, origin); err != nil {
			return err
		}
	}
	return nil
}

// variable returns the environment variable of a key.
func variable(key string) string { return Prefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_")) }

// variables maps environment variables to keys.
func variables() map[string]string {
	names := map[string]string{}
	for _, key := range Keys() {
		names[variable(key)] = key
	}
	names[Prefix+"NETWORK"] = networkKey
	names[Prefix+"NAME"] = nameKey
	// These names come from the specifications.
	names[Prefix+"DISCOVERY_MAX_SERVICES"] = "discovery.limits.services_per_provider"
	names["MANIFEST_AUTH_ENABLED"] = "auth.enabled"
	names["MANIFEST_AUTH_TOKEN"] = "auth.token"
	return names
}

// Setting is a key with its explanation for users.
type Setting struct {
	Key, Help string
	Reloads   bool // a running peer takes a new value at SIGHUP
}

// Settings returns all settings in the order of the settings file.
func Settings() []Setting { return settingsOf(reflect.TypeFor[Config](), "") }

// Keys returns the keys of all settings, sorted.
func Keys() []string {
	var keys []string
	for _, s := range Settings() {
		keys = append(keys, s.Key)
	}
	slices.Sort(keys)
	return keys
}

func settingsOf(t reflect.Type, prefix string) []Setting {
	var list []Setting
	for f := range t.Fields() {
		key := prefix + nameOf(f)
		if f.Type.Kind() == reflect.Struct {
			list = append(list, settingsOf(f.Type, key+".")...)
		} else {
			list = append(list, Setting{key, f.Tag.Get("help"), f.Tag.Get("reload") == "hangup"})
		}
	}
	return list
}

// nameOf returns the name of a field in the file.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

func namesOf(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		names = append(names, nameOf(f))
	}
	return names
}

// Changed returns the settings that differ between two configurations.
func Changed(a, b Config) []Setting {
	return slices.DeleteFunc(Settings(), func(s Setting) bool {
		x, _ := fieldOf(reflect.ValueOf(a), s.Key)
		y, _ := fieldOf(reflect.ValueOf(b), s.Key)
		return reflect.DeepEqual(x.Interface(), y.Interface())
	})
}

// fieldOf returns the field of a key: a setting or a section. The empty key means v itself.
func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	if key == "" {
		return v, true
	}
	name, rest, _ := strings.Cut(key, ".")
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			if nameOf(v.Type().Field(i)) == name {
				return fieldOf(v.Field(i), rest)
			}
		}
	}
	return reflect.Value{}, false
}

// Value formats the setting of a key in the form of the file.
func (c Config) Value(key string) string {
	v, _ := fieldOf(reflect.ValueOf(&c).Elem(), key)
	return render(v)
}

// Tree returns the settings in the structure of the settings file.
func (c Config) Tree() (map[string]any, error) {
	text, err := yaml.Marshal(c)
	var tree map[string]any
	if err == nil {
		err = yaml.Unmarshal(text, &tree)
	}
	return tree, fault.As("config.Tree", fault.Internal, err)
}
