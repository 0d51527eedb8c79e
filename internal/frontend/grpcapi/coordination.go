package grpcapi

import (
	"context"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination holds the parts of the coordination plane. All are required.
type Coordination struct {
	Service coord.Service
	Admin   coord.Admin

	// Owner names the client on whose behalf a call acts, by its connection, or refuses it. It runs
	// once per call and per stream.
	Owner func(ctx context.Context) (string, error)

	// Peers marks callers as peers of the network, which publish their own instances.
	Peers bool

	// Vouches returns nil if the word of a calling peer on its applications counts. Other peers speak for no caller with
	// a name. nil: the word of every peer counts.
	Vouches func(ctx context.Context) error

	// Authenticated says that applications authenticate here: instances are published only by peers whose word counts.
	Authenticated bool
}

// coordination serves LockService and CoordinationService.
type coordination struct {
	api.UnimplementedLockServiceServer
	api.UnimplementedCoordinationServiceServer
	coordv1.UnimplementedCallServiceServer
	Coordination
	waits     *access.Pool // waiting calls of Lock
	watches   *access.Pool
	refusals  *budget.Refusals
	shown     atomic.Pointer[api.Header] // by the last answer of a watch; never changed
	closing   context.Context
	intercept grpc.UnaryServerInterceptor // for the calls of a stream
	methods   calls.Methods
}

// Execute implements coord.Service, for the caller: the methods for single commands go through it.
func (c *coordination) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	caller, err := c.Owner(ctx)
	if err != nil {
		return nil, err
	}
	if cmd.Owner, err = c.ownerFor(ctx, caller, cmd.GetOwner()); err != nil {
		return nil, err
	}
	if err := c.check(ctx, caller, cmd); err != nil {
		return nil, fault.Wrap("grpcapi", err)
	}
	if t := cmd.GetTxn(); lists(t.GetThen()) || lists(t.GetElse()) {
		if err := budget.Grow(ctx, maxTxn); err != nil { // of what it reads the group gives no more
			return nil, err
		}
	}
	if cmd.GetLock().GetTimeoutMs() == 0 {
		return c.Service.Execute(ctx, cmd)
	}
	release, err := c.waits.Take(ctx, "grpcapi.Lock")
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := untilClosing(ctx, c.closing)
	defer cancel()
	r, err := c.Service.Execute(ctx, cmd)
	return r, orClosing(c.closing, "grpcapi.Lock", err)
}

// check refuses a command that callers may not send, or that this peer can judge alone.
func (c *coordination) check(ctx context.Context, caller string, cmd *coordv1.Command) error {
	if !c.Peers { // the front of another peer has names of its own for what is missing
		if err := numbered(cmd); err != nil {
			return err
		}
	}
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_LeaseGrant:
		if r.LeaseGrant.GetTtlMs() <= 0 && r.LeaseGrant.GetTtl() < 0 {
			return fault.Invalidf("ttl", r.LeaseGrant.GetTtl(), "must be above 0")
		}
	case *coordv1.Command_Txn:
		if n := proto.Size(r.Txn); n > maxTxn {
			return fault.Refused(fault.TooLarge, "then", "the transaction has %d bytes, at most %d: split it", n, maxTxn)
		}
	case *coordv1.Command_PublishInstances:
		return c.checkPublisher(ctx, caller, cmd)
	case *coordv1.Command_SetRequirement:
		return complete(r.SetRequirement)
	}
	if method, request := c.methods.Of(cmd); request != nil && method == "" {
		return fault.Refused(fault.Unsupported, "op", "no peer takes this command from a client")
	}
	return nil
}

// numbered refuses a command without a number that it needs: the group would look for a lease or a claim 0.
func numbered(cmd *coordv1.Command) error {
	var lease int64
	field := "lease_id"
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		lease = r.Lock.GetLeaseId()
	case *coordv1.Command_TryLock:
		lease = r.TryLock.GetLeaseId()
	case *coordv1.Command_Unlock:
		if lease = r.Unlock.GetLeaseId(); r.Unlock.GetFencingToken() <= 0 {
			return fault.Invalidf("fencing_token", r.Unlock.GetFencingToken(), "is missing: send that of the claim, a number above 0")
		}
		if r.Unlock.GetForce() { // whoever has the lease
			return nil
		}
	case *coordv1.Command_LeaseRevoke:
		lease, field = r.LeaseRevoke.GetId(), "id"
	default:
		return nil
	}
	if lease <= 0 {
		return fault.Invalidf(field, lease, "is missing: send the id of the lease, a number above 0")
	}
	return nil
}

// Read implements coord.Service, for the caller.
func (c *coordination) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	caller, err := c.Owner(ctx)
	if err != nil {
		return nil, err
	}
	if !c.Peers { // a peer restricts the lists of its callers itself
		q.Owner = caller
	}
	if err := budget.Grow(ctx, most(q)); err != nil {
		return nil, err
	}
	return c.Service.Read(ctx, q)
}

// Services implements Calls.
func (c *coordination) Services() []*grpc.ServiceDesc {
	schema := api.File_blackhole_api_v1_coordination_proto.Services()
	return []*grpc.ServiceDesc{
		c.service(api.LockService_ServiceDesc, schema.ByName("LockService")),
		c.service(api.CoordinationService_ServiceDesc, schema.ByName("CoordinationService")),
	}
}

// service is a service of the schema, whose methods for single commands and questions are told apart by their requests alone.
func (c *coordination) service(desc grpc.ServiceDesc, schema protoreflect.ServiceDescriptor) *grpc.ServiceDesc {
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(schema.Methods().ByName(protoreflect.Name(m.MethodName)).Input().FullName())
		if err != nil {
			panic("grpcapi: " + err.Error()) // generated code registers its messages
		}
		if asked(kind.New().Interface()) {
			desc.Methods[i].Handler = c.handler(kind)
		}
	}
	return &desc
}

// asked reports whether a request is that of a command or a question.
func asked(req proto.Message) bool {
	return coord.CommandOf("", req).GetRequest() != nil || coord.QuestionOf("", req).GetRequest() != nil
}

// handler serves a method with a kind of request.
func (c *coordination) handler(kind protoreflect.MessageType) grpc.MethodHandler {
	run := func(ctx context.Context, req any) (any, error) { return c.ask(ctx, req.(proto.Message)) }
	method := c.methods[kind.Descriptor().FullName()]
	return func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		req := kind.New().Interface()
		if err := decode(req); err != nil {
			return nil, err
		}
		if intercept == nil {
			return run(ctx, req)
		}
		return intercept(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, run)
	}
}

// ask answers the request of a command or a question by its response.
func (c *coordination) ask(ctx context.Context, req proto.Message) (proto.Message, error) {
	if cmd := coord.CommandOf("", req); cmd.GetRequest() != nil {
		r, err := c.Execute(ctx, cmd)
		if err != nil {
			return nil, err
		}
		return coord.Enclosed(r), nil
	}
	list, _ := req.(*api.ListLeasesRequest)
	if list.GetVisibleTo() != "" && !c.Peers {
		return nil, fault.Wrap("grpcapi.ListLeases", fault.Invalidf("visible_to", nil, "is for peers alone: leave it out"))
	}
	a, err := c.Read(ctx, coord.QuestionOf(list.GetVisibleTo(), req))
	if err != nil {
		return nil, err
	}
	return coord.Enclosed(a), nil
}
