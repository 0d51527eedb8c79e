package grpcapi

import (
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of what is kept for other watchers: 4 MiB in all.
const (
	keptBatches = 16
	keptBytes   = 256 << 10 // of a batch
)

// encodings keep the latest batches of events as they are sent: watchers of the same keys are given the
// same batches at about the same time, and each is encoded once.
type encodings [keptBatches]atomic.Pointer[encoded]

// encoded are events as the fields of an answer.
type encoded struct {
	events []coord.Event
	fields []byte
}

// put gives an answer its events. They go as bytes among the fields that it does not know, which on the
// wire makes no difference.
func (e *encodings) put(resp *api.WatchKeysResponse, events []coord.Event) {
	if len(events) > 0 {
		resp.ProtoReflect().SetUnknown(e.fields(events))
	}
}

// fields gives bytes that are shared: read only.
func (e *encodings) fields(events []coord.Event) []byte {
	slot := &e[events[0].Revision%keptBatches]
	// Versions of keys never change, so that the same pointers are the same event.
	if known := slot.Load(); known != nil && slices.Equal(known.events, events) {
		return known.fields
	}
	fields, _ := proto.Marshal(&api.WatchKeysResponse{Events: convert(events, fromKeyEvent)}) // bytes and numbers have an encoding
	if len(fields) <= keptBytes {
		slot.Store(&encoded{slices.Clone(events), fields}) // the batch's own may be used again
	}
	return fields
}
