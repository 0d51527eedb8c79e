package grpcapi

import (
	"slices"
	"strings"

	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha" // older clients ask for it alone
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/blackhole/blackhole/internal/frontend/xdsapi"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// described resolves what the registry of protobuf knows, and the services that it does not: a file there would take names that a program with the
// same services, such as Envoy's, has too.
type described struct{ more *protoregistry.Files }

// FindFileByPath implements protodesc.Resolver.
func (d described) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if f, err := d.more.FindFileByPath(path); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (d described) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if f, err := d.more.FindDescriptorByName(name); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// reflect registers the services that describe all others.
func (s *Server) reflect() {
	d := described{new(protoregistry.Files)}
	for _, f := range []*descriptorpb.FileDescriptorProto{
		xdsapi.File(),
		alone(agentv1.File_blackhole_agent_v1_agent_proto, discoveryAlone), alone(api.File_blackhole_api_v1_coordination_proto, lockAlone),
	} {
		file, err := protodesc.NewFile(f, protoregistry.GlobalFiles)
		if err == nil {
			err = d.more.RegisterFile(file)
		}
		if err != nil {
			panic("grpcapi: " + err.Error()) // impossible: it is made of valid ones
		}
	}
	o := reflection.ServerOptions{Services: s.grpc, DescriptorResolver: d}
	reflectionv1.RegisterServerReflectionServer(s.grpc, reflection.NewServerV1(o))
	reflectionv1alpha.RegisterServerReflectionServer(s.grpc, reflection.NewServer(o))
}

// alone is a file with a service of another one, without its package.
func alone(of protoreflect.FileDescriptor, service string) *descriptorpb.FileDescriptorProto {
	d := protodesc.ToServiceDescriptorProto(of.Services().ByName(protoreflect.Name(service)))
	d.Options = nil
	needs := []string{of.Path()}
	for _, m := range d.GetMethod() {
		m.Options = nil
		for _, name := range []string{m.GetInputType(), m.GetOutputType()} {
			message, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.TrimPrefix(name, ".")))
			if err == nil && !slices.Contains(needs, message.ParentFile().Path()) {
				needs = append(needs, message.ParentFile().Path())
			}
		}
	}
	return &descriptorpb.FileDescriptorProto{Name: proto.String(service + ".proto"), Syntax: proto.String("proto3"), Dependency: needs, Service: []*descriptorpb.ServiceDescriptorProto{d}}
}
