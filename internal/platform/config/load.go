package config

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Prefix begins the name of every environment variable: BLACKHOLE_DISCOVERY_RECORD_TTL sets
// the key discovery.record_ttl.
const Prefix = "BLACKHOLE_"

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
)

// Load merges the layers and validates the result. Errors: Invalid, with the key and the
// layer that set it.
func Load(src Source) (Config, Origin, error) {
	c, origin := Default(), Origin{}
	c.Data = cmp.Or(src.Data, c.Data)
	for _, key := range Keys() {
		origin[key] = "default"
	}
	merged := koanf.New(".")
	layers := []func(*koanf.Koanf) (func(key string) string, error){src.file, src.environ, src.flags}
	for _, layer := range layers {
		k := koanf.New(".")
		name, err := layer(k)
		if err != nil {
			return Config{}, nil, fault.Wrap("config.Load", err)
		}
		for _, key := range settings(k) {
			if emptySection(key, k.Get(key)) {
				k.Delete(key)
				continue
			}
			if !slices.Contains(Keys(), key) {
				return Config{}, nil, fault.Wrap("config.Load", fault.Invalidf(key, nil, "%s, set by %s", unknown(key), name(key)))
			}
			origin[key] = name(key)
		}
		if err := merged.Merge(k); err != nil {
			return Config{}, nil, fault.As("config.Load", fault.Invalid, err)
		}
	}
	if err := src.join(merged, origin); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", err)
	}
	if err := decode(merged, &c, origin); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", err)
	}
	if err := c.Validate(); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", fmt.Errorf("%w (set by %s)", err, origin.of(fault.FieldOf(err))))
	}
	return c, origin, nil
}

// unknown says what a key is that names no setting.
func unknown(key string) string {
	if slices.ContainsFunc(Keys(), func(known string) bool { return strings.HasPrefix(known, key+".") }) {
		return "is a section and takes no value"
	}
	return "unknown key"
}

// emptySection reports whether key is a section without settings, such as a section with
// comments only.
func emptySection(key string, value any) bool {
	if m, ok := value.(map[string]any); value != nil && (!ok || len(m) > 0) {
		return false
	}
	return slices.ContainsFunc(Keys(), func(known string) bool { return strings.HasPrefix(known, key+".") })
}

func (s Source) file(k *koanf.Koanf) (func(string) string, error) {
	name := func(string) string { return "file " + s.File }
	if s.File == "" {
		return name, nil
	}
	var secret string
	err := k.Load(file.Provider(s.File), expanding{parser: yaml.Parser(), environ: s.lookup(), literal: func(key string) { secret = key }})
	if err == nil && secret != "" {
		err = private(s.File, secret)
	}
	switch {
	case fault.FieldOf(err) != "":
		return nil, err
	case err != nil:
		return nil, fault.Invalidf("config", s.File, "%v", err)
	}
	return name, nil
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

// environ loads the variables with Prefix and the variables with special names. An underscore
// separates words or levels; the known keys decide which. If both names of a key are set, the
// one with Prefix applies.
func (s Source) environ(k *koanf.Koanf) (func(string) string, error) {
	names, given := variables(), s.lookup()
	by := map[string]string{} // key to the variable that sets it
	provider := env.Provider(".", env.Opt{
		EnvironFunc: func() []string { return s.Environ },
		TransformFunc: func(name, value string) (string, any) {
			key, ok := names[name]
			switch _, both := given[variable(key)]; {
			case ok && both && name != variable(key):
				return "", nil
			case !ok && !strings.HasPrefix(name, Prefix):
				return "", nil
			case !ok:
				key = strings.ToLower(strings.TrimPrefix(name, Prefix)) // unknown: Load reports the key
			}
			by[key] = name
			return key, value
		},
	})
	if err := k.Load(provider, nil); err != nil {
		return nil, fault.As("config.environ", fault.Invalid, err)
	}
	return func(key string) string { return "environment variable " + by[key] }, nil
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

func (s Source) flags(k *koanf.Koanf) (func(string) string, error) {
	by := map[string]string{} // key to the flag that sets it
	for flag, value := range s.Flags {
		key := flag
		switch flag {
		case networkFlag:
			key = networkKey
		case nameFlag:
			key = nameKey
		}
		by[key] = flag
		if err := k.Set(key, value); err != nil {
			return nil, fault.As("config.flags", fault.Invalid, err)
		}
	}
	return func(key string) string { return "flag --" + by[key] }, nil
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
	keys := keysOf(reflect.TypeFor[Config]())
	slices.Sort(keys)
	return keys
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for _, s := range settingsOf(t, "") {
		keys = append(keys, s.Key)
	}
	return keys
}

func settingsOf(t reflect.Type, prefix string) []Setting {
	var list []Setting
	for f := range t.Fields() {
		key := prefix + f.Tag.Get("koanf")
		if f.Type.Kind() == reflect.Struct {
			list = append(list, settingsOf(f.Type, key+".")...)
		} else {
			list = append(list, Setting{key, f.Tag.Get("help"), f.Tag.Get("reload") == "hangup"})
		}
	}
	return list
}

// Changed returns the settings that differ between two configurations.
func Changed(a, b Config) []Setting {
	var changed []Setting
	for _, s := range Settings() {
		path := strings.Split(s.Key, ".")
		if !reflect.DeepEqual(fieldOf(reflect.ValueOf(a), path).Interface(), fieldOf(reflect.ValueOf(b), path).Interface()) {
			changed = append(changed, s)
		}
	}
	return changed
}

// fieldOf returns the field of a known key.
func fieldOf(v reflect.Value, path []string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") != path[0] {
			continue
		}
		if len(path) == 1 {
			return v.Field(i)
		}
		return fieldOf(v.Field(i), path[1:])
	}
	panic("config: no field for a known key: " + path[0]) // impossible: Load checked the key against Keys
}

// Value formats the setting of a key in the form of the file.
func (c Config) Value(key string) string {
	return render(fieldOf(reflect.ValueOf(&c).Elem(), strings.Split(key, ".")))
}
