package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/v2"

	"github.com/blackhole/blackhole/pkg/fault"
)

// settings lists the keys that a layer sets. The entries of a setting that is a map belong to
// that setting.
func settings(k *koanf.Koanf) []string {
	var keys []string
	for _, key := range k.Keys() {
		if strings.HasPrefix(key, scriptsKey+".") {
			key = scriptsKey
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// decode fills c key by key, to name the key in errors.
func decode(k *koanf.Koanf, c *Config, origin Origin) error {
	for _, key := range settings(k) {
		field := fieldOf(reflect.ValueOf(c).Elem(), strings.Split(key, "."))
		if err := decodeInto(key, k.Get(key), field); err != nil {
			return fmt.Errorf("%w (set by %s)", err, origin[key])
		}
	}
	return nil
}

// decodeInto sets one setting, or an element of a list or map.
func decodeInto(key string, value any, field reflect.Value) error {
	switch {
	case value == nil: // a name without a value
		return nil
	case field.Type() == reflect.TypeFor[Secret]():
		return decodeSecret(key, value, field)
	case field.Kind() == reflect.Map:
		return decodeMap(key, value, field)
	case field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct:
		return decodeList(key, value, field)
	}
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result:           field.Addr().Interface(),
		WeaklyTypedInput: true, // environment variables are strings
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(","), boolAsText),
	})
	if err != nil {
		return fault.As("config.decode", fault.Internal, err)
	}
	if err := d.Decode(value); err != nil {
		return fault.Invalidf(key, value, "must be a %s: %v", typeName(field.Type()), err)
	}
	return nil
}

// boolAsText converts YAML's true and false for settings of text.
func boolAsText(from, to reflect.Type, value any) (any, error) {
	if from.Kind() == reflect.Bool && to.Kind() == reflect.String {
		return fmt.Sprint(value), nil
	}
	return value, nil
}

// decodeSecret accepts only text. It refuses empty text, such as the value of an empty
// variable: without the secret, the API would be open.
func decodeSecret(key string, value any, field reflect.Value) error {
	text, ok := value.(string)
	switch {
	case !ok:
		return fault.Invalidf(key, nil, "needs text (numbers in quotes)")
	case text == "":
		return fault.Invalidf(key, nil, "must not be empty; remove the setting for no secret")
	case text == redacted:
		return fault.Invalidf(key, nil, "is the placeholder in printed settings, not the secret")
	}
	field.Set(reflect.ValueOf(Secret(func() string { return text })))
	return nil
}

// decodeMap accepts a section of lists of text.
func decodeMap(key string, value any, field reflect.Value) error {
	section, ok := value.(map[string]any)
	if !ok {
		return fault.Invalidf(key, nil, "needs a section of the settings file")
	}
	field.Set(reflect.MakeMap(field.Type()))
	for name, list := range section {
		at := key + "." + name
		if _, ok := list.([]any); !ok {
			return fault.Invalidf(at, nil, "must be a list")
		}
		element := reflect.New(field.Type().Elem()).Elem()
		if err := decodeInto(at, list, element); err != nil {
			return err
		}
		field.SetMapIndex(reflect.ValueOf(name), element)
	}
	return nil
}

// decodeList accepts a list of sections.
func decodeList(key string, value any, field reflect.Value) error {
	list, ok := value.([]any)
	if !ok {
		return fault.Invalidf(key, nil, "needs a list in the settings file")
	}
	all := reflect.MakeSlice(field.Type(), len(list), len(list))
	for i, item := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		section, ok := item.(map[string]any)
		if !ok {
			return fault.Invalidf(at, nil, "must be a section")
		}
		known := keysOf(field.Type().Elem())
		for name, part := range section {
			if !slices.Contains(known, name) {
				return fault.Invalidf(at+"."+name, nil, "unknown key; known are %s", strings.Join(known, ", "))
			}
			if err := decodeInto(at+"."+name, part, fieldOf(all.Index(i), []string{name})); err != nil {
				return err
			}
		}
	}
	field.Set(all)
	return nil
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

// expanding is a parser that expands environment variables in values.
type expanding struct {
	parser  koanf.Parser
	environ map[string]string
	literal func(key string) // learns about secrets that are written out
}

// Unmarshal implements koanf.Parser.
func (e expanding) Unmarshal(text []byte) (map[string]any, error) {
	tree, err := e.parser.Unmarshal(text)
	if err != nil {
		return nil, err
	}
	for key, value := range tree {
		if tree[key], err = e.expand(key, value); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// Marshal implements koanf.Parser.
func (e expanding) Marshal(tree map[string]any) ([]byte, error) { return e.parser.Marshal(tree) }

func (e expanding) expand(key string, value any) (_ any, err error) {
	switch v := value.(type) {
	case string:
		return e.expandText(key, v)
	case []any:
		for i := range v {
			if v[i], err = e.expand(fmt.Sprintf("%s[%d]", key, i), v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for name := range v {
			if v[name], err = e.expand(key+"."+name, v[name]); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

// expandText replaces ${NAME}, and $${ by ${. An unset variable is an error, because an empty
// token would be worse.
func (e expanding) expandText(key, text string) (string, error) {
	if isSecret(key) && text != "" && !strings.Contains(text, "${") && !strings.Contains(text, "PUBLIC KEY") {
		e.literal(key)
	}
	var err error
	expanded := regexp.MustCompile(`\$?\$\{[^}]*\}?`).ReplaceAllStringFunc(text, func(match string) string {
		if strings.HasPrefix(match, "$$") {
			return match[1:]
		}
		name, closed := strings.CutSuffix(match[2:], "}")
		value, ok := e.environ[name]
		switch {
		case !closed || !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name):
			err = fault.Invalidf(key, nil, "has a ${ without the name of an environment variable, such as ${NAME}; write $${ for a literal ${")
		case !ok:
			err = fault.Invalidf(key, nil, "needs the environment variable %s, which is not set", name)
		}
		return value
	})
	return expanded, err
}

// render formats a value in the form of the file.
func render(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, render(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		for _, name := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			parts = append(parts, name.String()+": "+render(v.MapIndex(name)))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case reflect.Struct:
		for i, name := range keysOf(v.Type()) {
			if !v.Field(i).IsZero() {
				parts = append(parts, name+": "+render(v.Field(i)))
			}
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprint(v.Interface())
	}
}

// isSecret reports whether a key of the file, with positions in lists, holds a secret.
func isSecret(key string) bool {
	return key == "auth.token" || key == "auth.jwt.key" || strings.HasPrefix(key, "auth.tokens[") && strings.HasSuffix(key, "].token")
}
