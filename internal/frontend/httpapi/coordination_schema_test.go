package httpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

var update = flag.Bool("update", false, "write the types of the calls of the group into the OpenAPI document")

// TestCoordinationSchema: the OpenAPI document has the paths, roles, parameters and types that the schema of gRPC has. With
// -update it writes them; texts and examples stay as they are.
func TestCoordinationSchema(t *testing.T) {
	const file = "openapi/coordination.json"
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	var document struct {
		Paths      map[string]map[string]object `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	require.NoError(t, json.Unmarshal(old, &document))
	s := schemas{notes: notesOf(t), all: map[string]any{}}
	paths := map[string]map[string]object{}
	for _, c := range append((&coordinationAPI{Coordination: schemaAlone()}).calls(), (&tradeAPI{}).calls()...) {
		method, path, _ := strings.Cut(c.Pattern, " ")
		method = strings.ToLower(method)
		operation := document.Paths[path][method]
		if operation == nil {
			operation = object{}
		}
		s.describe(&c, operation)
		if paths[path] == nil {
			paths[path] = map[string]object{}
		}
		paths[path][method] = operation
	}
	s.of((&api.DeleteRequirementResponse{}).ProtoReflect().Descriptor(), false) // of the requests by hand
	document.Paths, document.Components.Schemas = paths, s.all
	var now bytes.Buffer
	out := json.NewEncoder(&now)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	require.NoError(t, out.Encode(document))
	if *update {
		require.NoError(t, os.WriteFile(file, now.Bytes(), 0o600))
		return
	}
	require.JSONEq(t, now.String(), string(old), "run go test ./internal/frontend/httpapi -run TestCoordinationSchema -update after changing the schema")
}

// schemas are the types of messages.
type schemas struct {
	notes map[string]string // comments, by message and field
	all   map[string]any    // by message
}

// notesOf reads the comments beside and above the fields of the schema.
func notesOf(t *testing.T) map[string]string {
	var text []byte
	for _, name := range []string{"coordination", "trade"} {
		one, err := os.ReadFile("../../../proto/blackhole/api/v1/" + name + ".proto")
		require.NoError(t, err)
		text = append(text, one...)
	}
	notes, message, above := map[string]string{}, "", []string{}
	opens, field := regexp.MustCompile(`^message (\w+) {`), regexp.MustCompile(`^  [\w. ]+ (\w+) = \d+;(?: // (.*))?$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if comment, ok := strings.CutPrefix(line, "  // "); ok {
			above = append(above, comment)
			continue
		}
		if m := opens.FindStringSubmatch(line); m != nil {
			message = m[1]
		}
		if m := field.FindStringSubmatch(line); m != nil {
			if m[2] != "" {
				above = append(above, m[2])
			}
			notes[message+"."+m[1]] = strings.Join(above, " ")
		}
		above = nil
	}
	return notes
}

// describe sets what the schema knows about an operation.
func (s schemas) describe(c *transcode.Call, operation object) {
	operation["x-role"] = grpcapi.Need(c.Method).String()
	parameters := []any{}
	for _, f := range c.Path() {
		parameters = append(parameters, s.parameter(f, "path"))
	}
	if c.Asks {
		for _, f := range c.Parameters() {
			parameters = append(parameters, s.parameter(f, "query"))
		}
	}
	if c.Descriptor.Name() == "Watch" {
		parameters = append(parameters, object{"name": "Last-Event-ID", "in": "header", "description": "id of the last event", "schema": object{"type": "string"}})
	}
	operation["parameters"] = parameters
	if c.Body {
		body := under(operation, "requestBody")
		body["required"] = true
		under(body, "content", "application/json")["schema"] = s.of(c.Descriptor.Input(), true)
	}
	content := under(operation, "responses", "200", "content")
	switch c.Descriptor.Name() {
	case "Watch", "Backup": // by hand
	default:
		under(content, "application/json")["schema"] = s.of(c.Descriptor.Output(), false)
	}
	if c.Descriptor.Name() == "Group" {
		under(operation, "responses", "503", "content", "application/json")["schema"] = object{"anyOf": []any{s.of(c.Descriptor.Output(), false), object{"$ref": "#/components/schemas/Error"}}}
		delete(under(operation, "responses", "503"), "$ref")
	}
}

// under returns the member at a path, and makes it.
func under(o object, path ...string) object {
	for _, name := range path {
		next, ok := o[name].(object)
		if !ok {
			next = object{}
			o[name] = next
		}
		o = next
	}
	return o
}

func (s schemas) parameter(f protoreflect.FieldDescriptor, in string) object {
	kind := object{"type": "string"}
	switch f.Kind() {
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		kind["pattern"] = "^-?[0-9]+$"
	case protoreflect.Uint32Kind:
		kind = object{"type": "integer", "minimum": 0}
	case protoreflect.BoolKind:
		kind["enum"] = []any{"true", "false"}
	case protoreflect.EnumKind:
		kind["enum"] = names(f.Enum())
	}
	p := object{"name": string(f.Name()), "in": in, "schema": kind}
	if note := s.note(f); note != "" {
		p["description"] = note
	}
	if in == "path" {
		p["required"] = true
	}
	return p
}

func (s schemas) note(f protoreflect.FieldDescriptor) string {
	return s.notes[string(f.Parent().Name())+"."+string(f.Name())]
}

func names(e protoreflect.EnumDescriptor) (list []any) {
	for i := range e.Values().Len() {
		list = append(list, string(e.Values().Get(i).Name()))
	}
	return list
}

// of returns a reference to the type of a message, which a client sends or gets.
func (s schemas) of(m protoreflect.MessageDescriptor, sent bool) object {
	name := string(m.Name())
	ref := object{"$ref": "#/components/schemas/" + name}
	if s.all[name] != nil {
		return ref
	}
	properties, required := object{}, []any{}
	s.all[name] = object{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		kind := s.kind(f, sent)
		if f.IsList() {
			kind = object{"type": "array", "items": kind}
		}
		if note := s.note(f); note != "" {
			if kind["$ref"] != nil {
				kind = object{"allOf": []any{kind}}
			}
			kind["description"] = note
		}
		properties[string(f.Name())] = kind
		if !sent && (f.Message() == nil || f.IsList()) && !f.HasOptionalKeyword() {
			required = append(required, string(f.Name()))
		}
	}
	schema := object{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	s.all[name] = schema
	return ref
}

func (s schemas) kind(f protoreflect.FieldDescriptor, sent bool) object {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return s.of(f.Message(), sent)
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.EnumKind:
		return object{"type": "string", "enum": names(f.Enum())}
	case protoreflect.Uint32Kind:
		return object{"type": "integer", "minimum": 0}
	case protoreflect.StringKind:
		return object{"type": "string"}
	default: // 64 bits
		if sent {
			return object{"type": []any{"string", "integer"}}
		}
		return object{"type": "string", "pattern": "^-?[0-9]+$"}
	}
}
