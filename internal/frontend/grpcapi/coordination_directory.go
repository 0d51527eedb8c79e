package grpcapi

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// checkPublisher refuses instances of anybody but a peer, under its own name.
func (c *coordination) checkPublisher(ctx context.Context, caller string, cmd *coordv1.Command) error {
	puts := cmd.GetPublishInstances().GetPuts()
	if !c.Peers {
		return fault.New("grpcapi.PublishInstances", fault.Forbidden, "only peers publish instances")
	}
	if err := checkEntries(puts); err != nil {
		return err
	}
	if cmd.GetOwner() != caller {
		return fault.New("grpcapi.PublishInstances", fault.Forbidden, "a peer publishes its own instances, and for nobody else")
	}
	named := func(e *api.DirectoryEntry) bool { return e.GetPrincipal() != "" }
	if len(puts) > 0 && c.Authenticated || slices.ContainsFunc(puts, named) {
		return c.vouched(ctx)
	}
	return nil
}

// checkEntries refuses entries that are not the instance that their key names. The group keeps values
// without reading them, so every member checks each batch of another peer here. A later version may
// send more fields and other values.
func checkEntries(puts []*api.DirectoryEntry) error {
	var i agentv1.Instance
	for n, e := range puts[:min(len(puts), directory.MaxBatch)] { // the group refuses a larger batch
		field := fmt.Sprintf("puts[%d].value", n)
		switch _, _, _, ok := directory.Names(string(e.GetKey())); {
		case !ok:
			return fault.Invalidf(fmt.Sprintf("puts[%d].key", n), nil, "must be directory/NAMESPACE/SERVICE/ID")
		case len(e.GetValue()) > directory.MaxEntry:
			return fault.Refused(fault.TooLarge, field, "has %d bytes, at most %d", len(e.GetValue()), directory.MaxEntry)
		case proto.Unmarshal(e.GetValue(), &i) != nil:
			return fault.Invalidf(field, nil, "is no instance")
		case string(e.GetKey()) != directory.Key(i.GetNamespace(), i.GetServiceName(), i.GetId()):
			return fault.Invalidf(field, nil, "is not of the instance that the key names")
		}
	}
	return nil
}

// complete checks a requirement, and gives it the default namespace, which this peer chooses; the log holds it.
func complete(req *api.SetRequirementRequest) error {
	q, err := toQuery(req.GetQuery())
	if err == nil {
		_, err = instances.Question(q)
	}
	if err == nil {
		req.Query = q.Proto()
	}
	return err
}
