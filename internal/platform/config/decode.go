package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

// layer is a source of settings while it is read.
type layer struct {
	name    string
	environ map[string]string // expands ${NAME}; nil: texts are taken as they are
	literal string            // a secret that the layer writes out, ""
}

// apply sets a setting, or those of a section. Errors name the key and the layer.
func (l *layer) apply(key string, n *yaml.Node, c *Config, origin Origin) error {
	var err error
	if field, ok := fieldOf(reflect.ValueOf(c).Elem(), key); ok {
		err = l.decode(key, n, field, origin)
	} else {
		err = fault.Invalidf(key, nil, "unknown key")
	}
	if err != nil {
		return fmt.Errorf("%w (set by %s)", err, l.name)
	}
	return nil
}

// decode sets a section, a setting, or an element of a list or map. A list of texts needs no brackets, but a command does.
func (l *layer) decode(key string, n *yaml.Node, field reflect.Value, origin Origin) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if origin[key] != "" {
		origin[key] = l.name
	}
	kind := field.Kind()
	switch {
	case n.ShortTag() == "!!null": // a name without a value, or a section with comments only
		return nil
	case kind == reflect.Struct || kind == reflect.Map:
		return l.decodeSection(key, n, field, origin)
	case kind == reflect.Slice && n.Kind == yaml.SequenceNode:
		field.Set(reflect.MakeSlice(field.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			if err := l.decode(fmt.Sprintf("%s[%d]", key, i), item, field.Index(i), origin); err != nil {
				return err
			}
		}
		return nil
	case n.Kind != yaml.ScalarNode, kind == reflect.Slice && (field.Type() != reflect.TypeFor[[]string]() || strings.HasPrefix(key, scriptsKey)):
		return fault.Invalidf(key, nil, "must be %s", typeName(field.Type()))
	}
	return l.decodeText(key, n, field)
}

func (l *layer) decodeSection(key string, n *yaml.Node, field reflect.Value, origin Origin) error {
	parts, err := section(n)
	if err != nil {
		return fault.Invalidf(key, nil, "is a section and takes no value")
	}
	if field.Kind() == reflect.Map {
		field.Set(reflect.MakeMap(field.Type()))
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		at, part, entry := strings.TrimPrefix(key+"."+name, "."), parts[name], reflect.Value{}
		if field.Kind() == reflect.Map {
			entry = reflect.New(field.Type().Elem()).Elem()
		} else if entry, _ = fieldOf(field, name); !entry.IsValid() {
			return fault.Invalidf(at, nil, "unknown key; known are %s", strings.Join(namesOf(field.Type()), ", "))
		}
		if err := l.decode(at, &part, entry, origin); err != nil {
			return err
		}
		if field.Kind() == reflect.Map {
			field.SetMapIndex(reflect.ValueOf(name), entry)
		}
	}
	return nil
}

// section returns the parts of a section by name. It understands aliases and merges, and refuses names that occur twice.
func section(n *yaml.Node) (map[string]yaml.Node, error) {
	var parts map[string]yaml.Node
	return parts, n.Decode(&parts)
}

func (l *layer) decodeText(key string, n *yaml.Node, field reflect.Value) error {
	text, err := l.text(key, n)
	if err != nil {
		return err
	}
	switch p := field.Addr().Interface().(type) {
	case *secret.Value:
		*p, err = l.secret(key, n, text)
		return err
	case *[]string:
		if *p = []string{}; text != "" {
			*p = strings.Split(text, ",")
		}
	case *string:
		*p = text
	case *time.Duration:
		if *p, err = time.ParseDuration(text); err != nil && isNumber(text) {
			return fault.Invalidf(key, text, "needs a unit: %ss?", text)
		}
	case *bool:
		*p, err = strconv.ParseBool(cmp.Or(text, "false"))
	case *int:
		if regexp.MustCompile(`^[-+]?0[0-9_]`).MatchString(text) { // octal for some readers of YAML, decimal for others
			return fault.Invalidf(key, text, "must be a whole number without a leading 0")
		}
		var n int64
		n, err = strconv.ParseInt(cmp.Or(text, "0"), 0, strconv.IntSize)
		*p = int(n)
	case *float64:
		*p, err = strconv.ParseFloat(cmp.Or(text, "0"), 64)
	}
	if err != nil {
		return fault.Invalidf(key, text, "must be %s", typeName(field.Type()))
	}
	return nil
}

func isNumber(text string) bool { _, err := strconv.ParseFloat(text, 64); return err == nil }

// secret accepts only text. It refuses empty text, such as the value of an empty
// variable: without the secret, the API would be open.
func (l *layer) secret(key string, n *yaml.Node, text string) (secret.Value, error) {
	switch {
	case n.ShortTag() != "!!str":
		return nil, fault.Invalidf(key, nil, "needs text (numbers in quotes)")
	case text == "":
		return nil, fault.Invalidf(key, nil, "must not be empty; remove the setting for no secret")
	case text == secret.Redacted:
		return nil, fault.Invalidf(key, nil, "is the placeholder in printed settings, not the secret")
	case !strings.Contains(n.Value, "${") && !strings.Contains(text, "PUBLIC KEY"):
		l.literal = key
	}
	return func() string { return text }, nil
}

func typeName(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration (24h, 5m, 10s)"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "text"
}

// text returns the text of a scalar. A settings file has ${NAME} for a variable of the environment, and $${ for ${. An unset
// variable is an error, because an empty token would be worse.
func (l *layer) text(key string, n *yaml.Node) (string, error) {
	switch {
	case n.ShortTag() == "!!bool":
		return strings.ToLower(n.Value), nil // True
	case l.environ == nil || n.ShortTag() != "!!str":
		return n.Value, nil
	}
	var err error
	expanded := regexp.MustCompile(`\$?\$\{[^}]*\}?`).ReplaceAllStringFunc(n.Value, func(match string) string {
		if strings.HasPrefix(match, "$$") {
			return match[1:]
		}
		name, closed := strings.CutSuffix(match[2:], "}")
		value, ok := l.environ[name]
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
		for i, name := range namesOf(v.Type()) {
			if !v.Field(i).IsZero() {
				parts = append(parts, name+": "+render(v.Field(i)))
			}
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprint(v.Interface())
	}
}
