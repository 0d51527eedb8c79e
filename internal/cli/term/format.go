package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Format is an output format, the type of the flag -o.
type Format string

// The formats.
const (
	AsTable  Format = "table"
	AsJSON   Format = "json"
	AsNDJSON Format = "ndjson"
	AsYAML   Format = "yaml"
)

// Formats lists the formats.
func Formats() []string {
	return []string{string(AsTable), string(AsJSON), string(AsNDJSON), string(AsYAML)}
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *Format) Set(s string) error {
	if !slices.Contains(Formats(), s) {
		return fault.Invalidf("", s, "must be one of %s, not %q", strings.Join(Formats(), ", "), s)
	}
	*f = Format(s)
	return nil
}

// Document is the output of a command in every format.
type Document struct {
	Value any    // JSON and YAML, in the form of the API
	Items []any  // NDJSON, one line each; nil means value as the only line
	Table Layout // text; nil is none
}

// Print writes a document in this format to standard output.
func (f Format) Print(c *Console, d Document) error {
	c.Settle()
	var out []byte
	var err error
	switch f {
	case AsJSON:
		out, err = JSON(d.Value, "  ")
	case AsNDJSON:
		out, err = d.lines()
	case AsYAML:
		out, err = YAML(d.Value)
	default:
		if d.Table != nil {
			out = []byte(d.Table.On(c.Screen()))
		}
	}
	if err == nil {
		_, err = c.Stdout.Write(out)
	}
	return fault.As("cli.print", fault.Internal, err)
}

func (d Document) lines() ([]byte, error) {
	items := d.Items
	if items == nil {
		items = []any{d.Value}
	}
	var all []byte
	for _, item := range items {
		line, err := JSON(item, "")
		if err != nil {
			return nil, err
		}
		all = append(all, line...)
	}
	return all, nil
}

// Items returns the NDJSON lines of a list.
func Items[T any](list []T) []any {
	items := make([]any, len(list))
	for i, item := range list {
		items[i] = item
	}
	return items
}

// List shows a list under a name, with a table row for each element.
func List[T any](name string, list []T, header []string, row func(*T) []string) Document {
	rows := make([][]string, len(list))
	for i := range list {
		rows[i] = row(&list[i])
	}
	return Document{Value: map[string]any{name: Emptied(list)}, Items: Items(list), Table: Table(header, rows)}
}

// Emptied replaces nil by an empty list: [] in JSON, not null.
func Emptied[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// JSON keeps <, > and & readable, because the reader is not a browser. It escapes
// characters that could deceive the reader of a terminal.
func JSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return escape(b.Bytes(), func(out []byte, r rune) []byte {
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
		return out
	}), err
}

// escape replaces the characters above ASCII that show nothing. JSON and the YAML
// written here have them in strings only.
func escape(text []byte, with func(out []byte, r rune) []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		if r >= 0x7f && !shows(r) {
			out = with(out, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

func shows(r rune) bool {
	return unicode.IsGraphic(r) && fault.Text("", "a"+string(r), 1+utf8.UTFMax) == nil
}

// YAML goes through JSON, which is YAML too, to keep the names, the order and the numbers of the API.
func YAML(v any) ([]byte, error) {
	var text, b bytes.Buffer
	from := json.NewEncoder(&text)
	from.SetEscapeHTML(false)
	if err := from.Encode(v); err != nil {
		return nil, err
	}
	long := func(out []byte, r rune) []byte { return fmt.Appendf(out, `\U%08x`, r) }
	var node yaml.Node
	if err := yaml.Unmarshal(escape(text.Bytes(), long), &node); err != nil {
		return nil, err
	}
	restyle(&node)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(&node), enc.Close())
	return escape(b.Bytes(), long), err
}

// restyle replaces the style of JSON by that of YAML, where quotes are needed less often. Block style cannot express {} and [].
func restyle(n *yaml.Node) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && (ambiguous(n.Value) || strings.ContainsFunc(n.Value, func(r rune) bool { return !shows(r) })):
		n.Style = yaml.DoubleQuotedStyle // escapes need quotes
	case n.Kind == yaml.ScalarNode || len(n.Content) > 0:
		n.Style = 0
	}
	for _, child := range n.Content {
		restyle(child)
	}
}

// ambiguous reports whether a YAML 1.1 reader would parse the unquoted text as a boolean or
// a number, such as NO for Norway. The library quotes by the rules of YAML 1.2.
func ambiguous(s string) bool {
	const numeric = "0123456789+-.:_eExXoabcdfABCDFTZ" // numbers of any base, times and dates
	if s == "" || strings.ContainsRune("0123456789+-.", rune(s[0])) && strings.Trim(s, numeric) == "" {
		return true
	}
	return slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(s))
}

// FieldsOf shows all fields of a value, as YAML.
func FieldsOf(value any) Document { return Document{Value: value, Table: fields{value}} }

type fields struct{ value any }

// On implements Layout.
func (f fields) On(Screen) string {
	text, err := YAML(f.value)
	if err != nil {
		return err.Error() + "\n" // impossible: the values are messages of the API
	}
	return string(text)
}
