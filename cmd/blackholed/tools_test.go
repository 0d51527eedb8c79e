package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// toolPatience bounds a call of a tool without a timeout.
const toolPatience = 2 * time.Minute

// options are the arguments of a tool: flags that begin with "-" or "+", some with a value, and
// other arguments.
type options struct {
	set    map[string][]string
	others []string
}

func parse(args []string, valued ...string) options {
	o := options{set: map[string][]string{}}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains(valued, arg) && i+1 < len(args):
			i++
			o.set[arg] = append(o.set[arg], args[i])
		case strings.HasPrefix(arg, "-") || strings.HasPrefix(arg, "+"):
			o.set[arg] = append(o.set[arg], "")
		default:
			o.others = append(o.others, arg)
		}
	}
	return o
}

func (o options) value(name, otherwise string) string {
	if v := o.set[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return otherwise
}

// standIn runs a tool and exits with its exit code.
func standIn(tool func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolPatience)
	defer cancel()
	if err := tool(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// curl implements the flags of curl in the sessions: -s -N -X -d -H -m -G --data-binary --data-urlencode.
func curl(ctx context.Context, args []string, out io.Writer) error {
	o := parse(args, "-X", "-d", "-H", "-m", "--data-binary", "--data-urlencode")
	body, method := o.value("--data-binary", strings.Join(o.set["-d"], "&")), http.MethodGet
	if _, get := o.set["-G"]; get {
		for _, field := range o.set["--data-urlencode"] {
			name, value, _ := strings.Cut(field, "=")
			body += "&" + name + "=" + url.QueryEscape(value)
		}
		o.others[0], body = o.others[0]+"?"+body, ""
	}
	if body != "" {
		method = http.MethodPost
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address := o.others[0]
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	r, err := http.NewRequestWithContext(ctx, o.value("-X", method), address, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded") // the default of curl
	for _, h := range o.set["-H"] {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Set(name, strings.TrimSpace(value))
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if within, err := time.ParseDuration(o.value("-m", "") + "s"); err == nil {
		p := patient{Writer: out, within: 2 * within}
		p.end = time.AfterFunc(p.within, cancel)
		defer p.end.Stop()
		out = p
	}
	if _, err := io.Copy(out, answer.Body); ctx.Err() == nil {
		return err
	}
	return nil // after -m, and -s prints no errors
}

// patient restarts the time of -m after each read, because a busy machine may answer slowly and
// the answer must be complete.
type patient struct {
	io.Writer
	within time.Duration
	end    *time.Timer
}

func (p patient) Write(b []byte) (int, error) {
	p.end.Reset(p.within)
	return p.Writer.Write(b)
}

// dig implements the arguments of dig in the sessions: @SERVER -p PORT NAME [TYPE], with +noall, +answer,
// +additional, +short and +tcp.
func dig(ctx context.Context, args []string, out io.Writer) error {
	o := parse(args, "-p")
	server, kind, name := "127.0.0.1", "A", ""
	for _, word := range o.others {
		switch _, isType := dns.StringToType[strings.ToUpper(word)]; {
		case strings.HasPrefix(word, "@"):
			server = word[1:]
		case isType:
			kind = strings.ToUpper(word)
		default:
			name = word
		}
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.StringToType[kind])
	question.SetEdns0(1232, false)
	c := dns.Client{Timeout: toolPatience}
	if o.set["+tcp"] != nil {
		c.Net = "tcp"
	}
	answer, _, err := c.ExchangeContext(ctx, question, net.JoinHostPort(server, o.value("-p", "53")))
	if err != nil {
		return err
	}
	if o.set["+short"] != nil {
		for _, rr := range answer.Answer {
			fmt.Fprintln(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		return nil
	}
	show := []dns.RR{}
	if o.set["+answer"] != nil {
		show = append(show, answer.Answer...)
	}
	if o.set["+additional"] != nil {
		show = append(show, answer.Extra...)
	}
	for _, rr := range show {
		if rr.Header().Rrtype != dns.TypeOPT {
			fmt.Fprintln(out, rr)
		}
	}
	return nil
}

// grpcurl implements the arguments of grpcurl in the sessions, with reflection:
// -plaintext [-d JSON] ADDRESS list|SERVICE/METHOD.
func grpcurl(ctx context.Context, args []string, out io.Writer) error {
	o := parse(args, "-d")
	conn, err := grpc.NewClient(o.others[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if o.others[1] == "list" {
		return listServices(ctx, conn, out)
	}
	service, method, _ := strings.Cut(o.others[1], "/")
	files, err := described(ctx, conn, service)
	if err != nil {
		return err
	}
	d, err := files.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return err
	}
	m := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	request, response := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	if err := protojson.Unmarshal([]byte(o.value("-d", "{}")), request); err != nil {
		return err
	}
	if err := conn.Invoke(ctx, "/"+service+"/"+method, request, response); err != nil {
		return err
	}
	text, err := protojson.Marshal(response)
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, pretty.String())
	return err
}

func listServices(ctx context.Context, conn *grpc.ClientConn, out io.Writer) error {
	answer, err := reflected(ctx, conn, &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	})
	if err != nil {
		return err
	}
	for _, s := range answer.GetListServicesResponse().GetService() {
		fmt.Fprintln(out, s.GetName())
	}
	return nil
}

// described fetches the descriptor files of a service.
func described(ctx context.Context, conn *grpc.ClientConn, service string) (*protoregistry.Files, error) {
	answer, err := reflected(ctx, conn, &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	})
	if err != nil {
		return nil, err
	}
	var set descriptorpb.FileDescriptorSet
	for _, data := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(data, file); err != nil {
			return nil, err
		}
		set.File = append(set.File, file)
	}
	return protodesc.NewFiles(&set)
}

func reflected(ctx context.Context, conn *grpc.ClientConn, r *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(r); err != nil {
		return nil, err
	}
	return stream.Recv()
}
