package calls

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Methods are the gRPC methods of the coordination plane by their requests: each has a type of its own. Rights, counters and
// spans know a call by its method, whether it comes by itself or on a stream.
type Methods map[protoreflect.FullName]string

// NewMethods reads the methods from the schema.
func NewMethods() Methods {
	all := Methods{}
	services := apiv1.File_blackhole_api_v1_coordination_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for k := range methods.Len() {
			m := methods.Get(k)
			all[m.Input().FullName()] = "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		}
	}
	return all
}

// Of returns the method of the request in a command or a question, and the request; "" for one that only members send.
func (m Methods) Of(envelope proto.Message) (string, proto.Message) {
	request := coord.Enclosed(envelope)
	if request == nil {
		return "", nil
	}
	return m[request.ProtoReflect().Descriptor().FullName()], request
}
