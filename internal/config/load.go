package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Prefix begins the name of every environment variable: key discovery.record_ttl is
// BLACKHOLE_DISCOVERY_RECORD_TTL.
const Prefix = "BLACKHOLE_"

// Origin tells which layer set a key: "default", "file", "environment BLACKHOLE_...", "flag --...".
type Origin map[string]string

// Source is where settings come from besides the defaults.
type Source struct {
	File    string         // path of a YAML file; empty: none
	Environ []string       // as os.Environ gives it
	Flags   map[string]any // key to value, only of flags that were given
}

// Load merges the layers and validates the result. It fails with Invalid, naming the key
// and the layer that set it.
func Load(src Source) (Config, Origin, error) {
	c, origin := Default(), Origin{}
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
		for _, key := range k.Keys() {
			if emptySection(key, k.Get(key)) {
				k.Delete(key)
				continue
			}
			if !slices.Contains(Keys(), key) {
				return Config{}, nil, fault.Wrap("config.Load", fault.Invalidf(key, nil, "unknown key, set by %s", name(key)))
			}
			origin[key] = name(key)
		}
		if err := merged.Merge(k); err != nil {
			return Config{}, nil, fault.As("config.Load", fault.Invalid, err)
		}
	}
	if err := decode(merged, &c, origin); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", err)
	}
	if err := c.Validate(); err != nil {
		return Config{}, nil, fault.Wrap("config.Load", fmt.Errorf("%w (set by %s)", err, origin[fault.FieldOf(err)]))
	}
	return c, origin, nil
}

// emptySection reports whether key is a heading with nothing under it, as is left of a section
// whose settings are all comments.
func emptySection(key string, value any) bool {
	if m, ok := value.(map[string]any); value != nil && (!ok || len(m) > 0) {
		return false
	}
	return slices.ContainsFunc(Keys(), func(known string) bool { return strings.HasPrefix(known, key+".") })
}

// decode fills c key by key, so that an error can name its key.
func decode(k *koanf.Koanf, c *Config, origin Origin) error {
	for _, key := range k.Keys() {
		field := fieldOf(reflect.ValueOf(c).Elem(), strings.Split(key, "."))
		d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
			Result:           field.Addr().Interface(),
			WeaklyTypedInput: true, // environment variables are strings
			DecodeHook: mapstructure.ComposeDecodeHookFunc(
				mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(","), boolAsText),
		})
		if err != nil {
			return fault.As("config.decode", fault.Internal, err)
		}
		if err := d.Decode(k.Get(key)); err != nil {
			return fault.Invalidf(key, k.Get(key), "must be a %s, set by %s: %v", typeName(field.Type()), origin[key], err)
		}
	}
	return nil
}

// boolAsText keeps YAML's true and false as such where text is wanted.
func boolAsText(from, to reflect.Type, value any) (any, error) {
	if from.Kind() == reflect.Bool && to.Kind() == reflect.String {
		return fmt.Sprint(value), nil
	}
	return value, nil
}

func (s Source) file(k *koanf.Koanf) (func(string) string, error) {
	name := func(string) string { return "file " + s.File }
	if s.File == "" {
		return name, nil
	}
	if err := k.Load(file.Provider(s.File), yaml.Parser()); err != nil {
		return nil, fault.Invalidf("config", s.File, "%v", err)
	}
	return name, nil
}

// environ takes the variables that begin with Prefix. Underscores separate words as well
// as levels, so the known keys decide which is meant.
func (s Source) environ(k *koanf.Koanf) (func(string) string, error) {
	names := variables()
	provider := env.Provider(".", env.Opt{
		Prefix:      Prefix,
		EnvironFunc: func() []string { return s.Environ },
		TransformFunc: func(name, value string) (string, any) {
			if key, ok := names[name]; ok {
				return key, value
			}
			return strings.ToLower(strings.TrimPrefix(name, Prefix)), value // unknown: Load reports it
		},
	})
	if err := k.Load(provider, nil); err != nil {
		return nil, fault.As("config.environ", fault.Invalid, err)
	}
	return func(key string) string {
		for name, of := range names {
			if of == key {
				return "environment variable " + name
			}
		}
		return "environment variable " + Prefix + strings.ToUpper(key)
	}, nil
}

func (s Source) flags(k *koanf.Koanf) (func(string) string, error) {
	for key, value := range s.Flags {
		if err := k.Set(key, value); err != nil {
			return nil, fault.As("config.flags", fault.Invalid, err)
		}
	}
	return func(key string) string { return "flag --" + key }, nil
}

// variables maps each environment variable to its key.
func variables() map[string]string {
	names := map[string]string{}
	for _, key := range Keys() {
		names[Prefix+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))] = key
	}
	// The specification's own name for this one does not follow from its key.
	names[Prefix+"DISCOVERY_MAX_SERVICES"] = "discovery.limits.services_per_provider"
	return names
}

// Keys lists every setting, sorted.
func Keys() []string {
	keys := keysOf(reflect.TypeFor[Config](), "")
	slices.Sort(keys)
	return keys
}

func keysOf(t reflect.Type, prefix string) []string {
	var keys []string
	for f := range t.Fields() {
		key := prefix + f.Tag.Get("koanf")
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, keysOf(f.Type, key+".")...)
		} else {
			keys = append(keys, key)
		}
	}
	return keys
}

// fieldOf finds the field of a known key.
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

// Value gives the setting of a key as text, for people.
func (c Config) Value(key string) string {
	return fmt.Sprint(fieldOf(reflect.ValueOf(&c).Elem(), strings.Split(key, ".")).Interface())
}

func typeName(t reflect.Type) string {
	switch t.String() {
	case "time.Duration":
		return "duration (24h, 5m, 10s)"
	case "[]string":
		return "list"
	default:
		return t.String()
	}
}
