// Package transcode serves calls of gRPC as JSON over HTTP. The annotations google.api.http of their schema bind them to
// paths. Names in JSON and in URLs are those of the schema.
//
// Bytes are base64 in JSON. In a URL they stand for themselves, percent-encoded. Numbers of 64 bits are strings in
// answers, because many clients round them, and strings or numbers in requests.
package transcode

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Call is a method of gRPC at a path of HTTP.
type Call struct {
	Pattern string // of http.ServeMux
	Method  string // full name in gRPC
	Body    bool   // the body is the request, without the fields of the path
	Asks    bool   // the parameters of the URL are fields of the request

	Descriptor protoreflect.MethodDescriptor

	path []protoreflect.FieldDescriptor
	run  func(ctx context.Context, receive, send func(proto.Message) error) error
}

// Of returns the annotated calls of a service, which srv implements, within interceptors; nil: without any.
func Of(srv any, service *grpc.ServiceDesc, unary grpc.UnaryServerInterceptor, stream grpc.StreamServerInterceptor) []Call {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service.ServiceName))
	if err != nil {
		panic("transcode: " + err.Error()) // generated code registers its schema
	}
	var calls []Call
	variable := regexp.MustCompile(`{(\w+)}`)
	of := func(name string, run func(ctx context.Context, receive, send func(proto.Message) error) error) {
		method := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name))
		rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
		for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
			if pattern := patternOf(r); pattern != "" {
				c := Call{Pattern: pattern, Method: "/" + service.ServiceName + "/" + name, Body: r.GetBody() != "", Descriptor: method, run: run}
				for _, v := range variable.FindAllStringSubmatch(pattern, -1) {
					c.path = append(c.path, method.Input().Fields().ByName(protoreflect.Name(v[1])))
				}
				c.Asks = !c.Body && len(c.Parameters()) > 0
				calls = append(calls, c)
			}
		}
	}
	for _, m := range service.Methods {
		of(m.MethodName, func(ctx context.Context, receive, send func(proto.Message) error) error {
			resp, err := m.Handler(srv, ctx, func(in any) error { return receive(in.(proto.Message)) }, unary)
			if err != nil {
				return err
			}
			return send(resp.(proto.Message))
		})
	}
	for _, m := range service.Streams {
		info := &grpc.StreamServerInfo{FullMethod: "/" + service.ServiceName + "/" + m.StreamName, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}
		of(m.StreamName, func(ctx context.Context, receive, send func(proto.Message) error) error {
			e := &exchange{ctx: ctx, receive: receive, send: send}
			if stream == nil {
				return m.Handler(srv, e)
			}
			return stream(srv, e, info, m.Handler)
		})
	}
	return calls
}

func patternOf(r *annotations.HttpRule) string {
	switch p := r.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet + " " + p.Get
	case *annotations.HttpRule_Put:
		return http.MethodPut + " " + p.Put
	case *annotations.HttpRule_Post:
		return http.MethodPost + " " + p.Post
	case *annotations.HttpRule_Delete:
		return http.MethodDelete + " " + p.Delete
	}
	return ""
}

// exchange is a stream of requests and answers.
type exchange struct {
	grpc.ServerStream // nil: the calls use the methods below alone

	ctx           context.Context
	receive, send func(proto.Message) error
}

func (e *exchange) Context() context.Context { return e.ctx }

func (e *exchange) SendMsg(m any) error { return e.send(m.(proto.Message)) }

func (e *exchange) RecvMsg(m any) error { return e.receive(m.(proto.Message)) }

// Path returns the fields that the path holds.
func (c *Call) Path() []protoreflect.FieldDescriptor { return c.path }

// Parameters returns the fields that the URL may hold besides those of the path: all that are no lists and no messages.
func (c *Call) Parameters() []protoreflect.FieldDescriptor {
	var list []protoreflect.FieldDescriptor
	fields := c.Descriptor.Input().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !slices.Contains(c.path, f) && !f.IsList() && f.Message() == nil {
			list = append(list, f)
		}
	}
	return list
}

// Request reads a request. Errors: Invalid, with the path of the field.
func (c *Call) Request(r *http.Request, body []byte) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(c.Descriptor.Input().FullName())
	if err != nil {
		panic("transcode: " + err.Error()) // as in Of
	}
	m := kind.New()
	if c.Body {
		if err := object(m, body); err != nil {
			if fault.FieldOf(err) == "" {
				err = fault.In("body", err)
			}
			return nil, err
		}
	}
	var known []string
	var parameters []protoreflect.FieldDescriptor
	if c.Asks {
		parameters = c.Parameters()
	}
	for _, f := range parameters {
		known = append(known, string(f.Name()))
	}
	values, err := input.Known(r.URL, known...)
	if err != nil {
		return nil, err
	}
	for _, f := range c.path {
		if m.Has(f) {
			return nil, fault.Invalidf(string(f.Name()), nil, "is in the URL: leave it out of the body")
		}
		if err := setText(m, f, r.PathValue(string(f.Name()))); err != nil {
			return nil, err
		}
	}
	for _, f := range parameters {
		if name := string(f.Name()); values.Has(name) {
			if err := setText(m, f, values.Get(name)); err != nil {
				return nil, err
			}
		}
	}
	return m.Interface(), nil
}

func setText(m protoreflect.Message, f protoreflect.FieldDescriptor, text string) error {
	v, err := scalar(f, text)
	if err != nil {
		return fault.In(string(f.Name()), err)
	}
	m.Set(f, v)
	return nil
}

// Run makes the call for a request. It passes each answer to send. Errors: those of the method and of send.
func (c *Call) Run(ctx context.Context, req proto.Message, send func(proto.Message) error) error {
	return c.Exchange(ctx, func(m proto.Message) error {
		if req == nil {
			return io.EOF
		}
		proto.Merge(m, req)
		req = nil
		return nil
	}, send)
}

// Exchange is Run for requests that come one by one: receive fills in the next one, and fails with io.EOF after the last.
func (c *Call) Exchange(ctx context.Context, receive, send func(proto.Message) error) error {
	return c.run(ctx, receive, send)
}

// JSON renders an answer in one line, with the fields that have their default.
func JSON(m proto.Message) ([]byte, error) { return AppendJSON(nil, m) }

// AppendJSON appends the JSON of an answer.
func AppendJSON(dst []byte, m proto.Message) ([]byte, error) {
	dst = slices.Grow(dst, proto.Size(m)*3/2+256) // most of a large message is bytes, which base64 makes a third longer
	from := len(dst)
	dst, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("transcode: %w", err)
	}
	return append(dst[:from], compact(dst[from:])...), nil
}

// compact removes in place the spaces that protojson adds in some builds.
func compact(text []byte) []byte {
	to, quoted := 0, false
	for from := 0; from < len(text); from++ {
		switch c := text[from]; {
		case quoted && c == '\\':
			text[to], text[to+1] = c, text[from+1]
			from, to = from+1, to+2
			continue
		case c == '"':
			quoted = !quoted
		case c == ' ' && !quoted:
			continue
		}
		text[to] = text[from]
		to++
	}
	return text[:to]
}

// wholeBelow is the size in bytes of a message that Pieces renders as a whole.
const wholeBelow = 32 << 10

// Pieces renders an answer as JSON does, and passes it to put in pieces: no element of a list is rendered before the ones in front of it
// went to put.
func Pieces(m proto.Message, put func([]byte)) error {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	nested := false
	rest := r.New() // what is no message
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() != nil && !f.IsMap() {
			nested = nested || r.Has(f)
		} else if r.Has(f) {
			rest.Set(f, r.Get(f))
		}
	}
	text, err := []byte(nil), error(nil)
	if !nested || proto.Size(m) < wholeBelow {
		if text, err = JSON(m); err == nil {
			put(text)
		}
		return err
	}
	var values map[string]json.RawMessage
	if text, err = JSON(rest.Interface()); err != nil {
		return err
	}
	if err = json.Unmarshal(text, &values); err != nil {
		return fmt.Errorf("transcode: %w", err)
	}
	before := "{"
	for i := range fields.Len() {
		f := fields.Get(i)
		value, plain := values[string(f.Name())]
		switch {
		case f.Message() != nil && r.Has(f) && !f.IsMap():
			put([]byte(before + `"` + string(f.Name()) + `":`))
			if err := elements(r.Get(f), f.IsList(), put); err != nil {
				return err
			}
		case plain:
			put(append([]byte(before+`"`+string(f.Name())+`":`), value...))
		default:
			continue
		}
		before = ","
	}
	put([]byte("}"))
	return nil
}

// elements renders a message, or a list of them.
func elements(v protoreflect.Value, list bool, put func([]byte)) error {
	if !list {
		return Pieces(v.Message().Interface(), put)
	}
	for i := range v.List().Len() {
		put([]byte("[,"[min(i, 1):][:1]))
		if err := Pieces(v.List().Get(i).Message().Interface(), put); err != nil {
			return err
		}
	}
	put([]byte("]"))
	return nil
}
