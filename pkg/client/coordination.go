package client

import (
	"cmp"
	"context"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination is the contract of the coordination plane as served by a peer: each call is one
// request without repetition. Sessions, watches and elections add repetition; most programs
// want them.
//
// It implements coord.Service and coord.Admin. The peer determines the owner of a call: the owner of a command is not
// sent, except with SpeakForOwners.
type Coordination struct {
	calls   *calls.Caller
	watches api.LockServiceClient         // on a separate connection for long calls
	admin   api.CoordinationServiceClient // on that connection
	speaks  bool                          // see SpeakForOwners
}

// Coordination returns the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// Execute implements coord.Service for all commands except the commands of members. Lifetimes of leases start at the
// sending of the request.
//
// Errors: Unsupported for commands of members.
func (p *Coordination) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	const op = "client.Execute"
	method, request := calls.MethodOf(cmd)
	if method == "" {
		return nil, fault.Wrap(op, fault.Refused(fault.Unsupported, "op", "no peer takes this command from a client"))
	}
	if err := checkText(request); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if r := cmd.GetKeepAlive(); r != nil {
		if _, err := coord.Renewed(r); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	if !p.speaks {
		cmd.Owner = ""
	}
	r, err := p.calls.Execute(ctx, cmd)
	if err == nil && len(r.GetKeepAlive().GetTtlsMs()) != len(cmd.GetKeepAlive().GetIds()) {
		err = fault.New("", fault.Internal, "the peer answered for other leases")
	}
	return r, fromStatus(op, err)
}

// checkText refuses a request with a text that a message cannot carry.
func checkText(req proto.Message) (err error) {
	text := func(field, s string) error {
		if utf8.ValidString(s) {
			return nil
		}
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	req.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.StringKind && !f.IsList() {
			err = text(string(f.Name()), v.String())
		}
		return err == nil
	})
	if txn, ok := req.(*api.TxnRequest); ok {
		for i, c := range txn.GetCompare() {
			err = cmp.Or(err, text(fmt.Sprintf("compare[%d].lock", i), c.GetLock()))
		}
	}
	return err
}

// Read implements coord.Service.
func (p *Coordination) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	const op = "client.Read"
	if _, request := calls.MethodOfQuestion(q); request != nil {
		if err := checkText(request); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	if !p.speaks {
		q.Owner = ""
	}
	a, err := p.calls.Read(ctx, q)
	return a, fromStatus(op, err)
}
