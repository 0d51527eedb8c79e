package etcdapi

import (
	"testing"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// TestEventsAreEncodedOnce: watches that select the same events share their text, and each gets what it selects.
func TestEventsAreEncodedOnce(t *testing.T) {
	s := &Server{keys: "p/"}
	kv := func(key, value string, revision int64) *apiv1.KeyVal {
		return &apiv1.KeyVal{Key: []byte("p/" + key), Value: []byte(value), ModRevision: revision, CreateRevision: 1, Version: revision}
	}
	b := s.batch([]*apiv1.KeyEvent{
		{Type: apiv1.KeyEvent_PUT, Kv: kv("a", "1", 2), PrevKv: kv("a", "0", 1)},
		{Type: apiv1.KeyEvent_DELETE, Kv: kv("b", "", 3), PrevKv: kv("b", "0", 1)},
		{Type: apiv1.KeyEvent_PUT, Kv: kv("b", "2", 4)},
	})
	all := func(req *pb.WatchCreateRequest) *watch { return &watch{span: coord.Under("p/"), req: req} }
	first := b.of(all(&pb.WatchCreateRequest{})).whole()
	require.Same(t, &first[0], &b.of(all(&pb.WatchCreateRequest{})).whole()[0])
	before := b.with[0][0]
	for name, c := range map[string]struct {
		w    *watch
		want []string
	}{
		"all":              {all(&pb.WatchCreateRequest{}), []string{"a=1", "-b", "b=2"}},
		"values before":    {all(&pb.WatchCreateRequest{PrevKv: true}), []string{"a=1 (0)", "-b (0)", "b=2"}},
		"one key":          {&watch{span: coord.Exactly("p/a"), req: &pb.WatchCreateRequest{}}, []string{"a=1"}},
		"puts":             {all(&pb.WatchCreateRequest{Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}}), []string{"a=1", "b=2"}},
		"from 3":           {&watch{span: coord.Under("p/"), req: &pb.WatchCreateRequest{}, next: 3}, []string{"-b", "b=2"}},
		"nothing":          {&watch{span: coord.Under("q/"), req: &pb.WatchCreateRequest{}}, nil},
		"nothing (before)": {&watch{span: coord.Under("q/"), req: &pb.WatchCreateRequest{PrevKv: true}}, nil},
	} {
		answer := &pb.WatchResponse{WatchId: 7}
		answer.ProtoReflect().SetUnknown(b.of(c.w).whole())
		m, err := parsed(answer)
		require.NoError(t, err, name)
		got := m.(*pb.WatchResponse)
		require.Equal(t, int64(7), got.GetWatchId())
		var events []string
		for _, e := range got.GetEvents() {
			text := string(e.GetKv().GetKey()) + "=" + string(e.GetKv().GetValue())
			if e.GetType() == mvccpb.Event_DELETE {
				text = "-" + string(e.GetKv().GetKey())
			}
			if e.GetPrevKv() != nil {
				text += " (" + string(e.GetPrevKv().GetValue()) + ")"
			}
			events = append(events, text)
		}
		require.Equal(t, c.want, events, name)
		require.Equal(t, proto.Size(answer), proto.Size(got), name)
	}
	require.Same(t, &before[0], &b.with[0][0][0])
}
