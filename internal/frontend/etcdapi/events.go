package etcdapi

import (
	"slices"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// batch is the events of one answer of the plane. Each is translated and encoded once for all watches of a stream, and watches that
// select the same ones share the text. The encoding of Protobuf allows it: the text of a repeated field may stand among the
// fields that a message does not know.
type batch struct {
	s      *Server
	all    []*apiv1.KeyEvent
	keys   []string
	with   [2][][]byte // the field of each event, without and with the value before; nil until a watch selects it
	last   selection
	chosen []int // memory for the next selection
}

// selection is what a watch selects of a batch.
type selection struct {
	of     []int // places in the batch
	prev   bool  // with the values before
	events [][]byte
	text   []byte // of all; nil until one asks for it
}

func (s *Server) batch(all []*apiv1.KeyEvent) *batch {
	b := &batch{s: s, all: all, keys: make([]string, len(all)), with: [2][][]byte{make([][]byte, len(all)), make([][]byte, len(all))}}
	for i, e := range all {
		b.keys[i] = string(e.GetKv().GetKey())
	}
	return b
}

// of returns the events that a watch lacks and selects, until the next call. The watch is guarded by the caller.
func (b *batch) of(w *watch) *selection {
	b.chosen = b.chosen[:0]
	for i, e := range b.all {
		put := e.GetType() == apiv1.KeyEvent_PUT
		if e.GetKv().GetModRevision() >= w.next && w.span.Contains(b.keys[i]) && !w.filtered(put) {
			b.chosen = append(b.chosen, i)
		}
	}
	if b.last.prev != w.req.GetPrevKv() || !slices.Equal(b.last.of, b.chosen) {
		b.last = selection{of: slices.Clone(b.chosen), prev: w.req.GetPrevKv(), events: make([][]byte, len(b.chosen))}
		for n, i := range b.chosen {
			b.last.events[n] = b.field(i, b.last.prev)
		}
	}
	return &b.last
}

// whole is all events in one text.
func (s *selection) whole() []byte {
	if s.text == nil {
		s.text = slices.Concat(s.events...)
	}
	return s.text
}

// field is an event in the words of etcd.
func (b *batch) field(i int, prev bool) []byte {
	kind := 0
	if prev {
		kind = 1
	}
	known := &b.with[kind][i]
	if *known == nil {
		e := b.all[i]
		out := &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: b.s.keys.kv(e.GetKv())}
		if prev {
			out.PrevKv = b.s.keys.kv(e.GetPrevKv())
		}
		if e.GetType() != apiv1.KeyEvent_PUT {
			out.Type = mvccpb.Event_DELETE
		}
		*known, _ = proto.Marshal(&pb.WatchResponse{Events: []*mvccpb.Event{out}}) // of bytes and numbers: it has an encoding
	}
	return *known
}

// parsed is a message with events as those who read its fields need it.
func parsed(m proto.Message) (proto.Message, error) {
	if len(m.ProtoReflect().GetUnknown()) == 0 {
		return m, nil
	}
	text, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := m.ProtoReflect().New().Interface()
	return out, proto.Unmarshal(text, out)
}
