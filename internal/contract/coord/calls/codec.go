package calls

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields, as in calls.proto.
const (
	requestCalls protowire.Number = 1 // CallsRequest.calls
	callID       protowire.Number = 1 // Call.id
	callCancel   protowire.Number = 4 // Call.cancel
)

// request is a CallsRequest of encoded calls. Each caller encodes its own call before it waits: a caller that left
// may change its message, and the sender has less to do.
type request [][]byte

// codec writes a request, and reads and writes all other messages as Protobuf.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	calls, ok := v.(request)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := 0
	for _, call := range calls {
		size += protowire.SizeTag(requestCalls) + protowire.SizeBytes(len(call))
	}
	b := make([]byte, 0, size)
	for _, call := range calls {
		b = protowire.AppendBytes(protowire.AppendTag(b, requestCalls, protowire.BytesType), call)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}
