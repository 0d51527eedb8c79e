package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/pkg/fault"
)

// format is an output format, the type of the flag -o.
type format string

const (
	formatTable  format = "table"
	formatJSON   format = "json"
	formatNDJSON format = "ndjson"
	formatYAML   format = "yaml"
)

func formats() []string {
	return []string{string(formatTable), string(formatJSON), string(formatNDJSON), string(formatYAML)}
}

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if !slices.Contains(formats(), s) {
		return fault.Invalidf("", s, "must be one of %s, not %q", strings.Join(formats(), ", "), s)
	}
	*f = format(s)
	return nil
}

// document is the output of a command in every format.
type document struct {
	value any    // JSON and YAML, in the form of the API
	items []any  // NDJSON, one line each; nil means value as the only line
	table layout // text; nil is none
}

// print writes a document in this format to standard output.
func (f format) print(c *console, d document) error {
	c.settle()
	var out []byte
	var err error
	switch f {
	case formatJSON:
		out, err = marshalJSON(d.value, "  ")
	case formatNDJSON:
		out, err = d.lines()
	case formatYAML:
		out, err = marshalYAML(d.value)
	default:
		if d.table != nil {
			out = []byte(d.table.on(c.screen()))
		}
	}
	if err == nil {
		_, err = c.stdout.Write(out)
	}
	return fault.As("cli.print", fault.Internal, err)
}

func (d document) lines() ([]byte, error) {
	items := d.items
	if items == nil {
		items = []any{d.value}
	}
	var all []byte
	for _, item := range items {
		line, err := marshalJSON(item, "")
		if err != nil {
			return nil, err
		}
		all = append(all, line...)
	}
	return all, nil
}

// itemsOf returns the NDJSON lines of a list.
func itemsOf[T any](list []T) []any {
	items := make([]any, len(list))
	for i, item := range list {
		items[i] = item
	}
	return items
}

// listDocument shows a list under a name, with a table row for each element.
func listDocument[T any](name string, list []T, header []string, row func(*T) []string) document {
	rows := make([][]string, len(list))
	for i := range list {
		rows[i] = row(&list[i])
	}
	return document{value: map[string]any{name: emptied(list)}, items: itemsOf(list), table: table(header, rows)}
}

// emptied replaces nil by an empty list: [] in JSON, not null.
func emptied[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// marshalJSON keeps <, > and & readable, because the reader is not a browser. It escapes
// characters that could deceive the reader of a terminal.
func marshalJSON(v any, indent string) ([]byte, error) {
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

// escape replaces the characters above ASCII that are not graphic. JSON and the YAML
// written here have them in strings only.
func escape(text []byte, with func(out []byte, r rune) []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		if r >= 0x7f && !unicode.IsGraphic(r) {
			out = with(out, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// marshalYAML goes through JSON to keep the names, the order and the numbers of the API.
func marshalYAML(v any) ([]byte, error) {
	text, err := marshalJSON(v, "")
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	node, err := yamlNode(dec)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, err
	}
	err = enc.Close()
	return escape(b.Bytes(), func(out []byte, r rune) []byte { return fmt.Appendf(out, `\U%08x`, r) }), err
}

// yamlNode reads the next JSON value.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim: // '{' or '['; the closing delimiter is read below
		node := &yaml.Node{Kind: yaml.MappingNode}
		if t == '[' {
			node.Kind = yaml.SequenceNode
		}
		for dec.More() { // an object alternates names and values
			child, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle // block style cannot express {} and []
		}
		_, err := dec.Token()
		return node, err
	case string:
		node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t}
		if ambiguous(t) || strings.ContainsFunc(t, func(r rune) bool { return !unicode.IsGraphic(r) }) { // escapes need quotes
			node.Style = yaml.DoubleQuotedStyle
		}
		return node, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: map[bool]string{true: "true", false: "false"}[t]}, nil
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: "null"}, nil
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
