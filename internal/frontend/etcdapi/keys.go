package etcdapi

import (
	"bytes"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// keyspace is the prefix of the keys of this front.
type keyspace string

// key returns the group's key of a client's one.
func (k keyspace) key(key []byte) []byte { return slices.Concat([]byte(k), key) }

// span returns the group's keys of a client's range. The end "\x00" means the end of the client's keys.
func (k keyspace) span(key, end []byte) coord.Span {
	switch from := string(k) + string(key); {
	case len(end) == 0:
		return coord.Exactly(from)
	case string(end) == "\x00":
		return coord.Span{From: from, To: coord.Under(string(k)).To}
	default:
		return coord.Span{From: from, To: string(k) + string(end)}
	}
}

// bounds is span for a message with a key and an optional end.
func (k keyspace) bounds(key, end []byte) (from, to []byte) {
	if len(end) == 0 {
		return k.key(key), nil
	}
	return k.span(key, end).Bounds()
}

// strip returns the client's key of the group's one.
func (k keyspace) strip(key []byte) []byte { return bytes.TrimPrefix(key, []byte(k)) }

// kv returns a version as etcd has it; nil for none.
func (k keyspace) kv(kv *apiv1.KeyVal) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	out := new(mvccpb.KeyValue)
	k.translate(kv, out)
	return out
}

// kvs returns versions as etcd has them, in one piece of memory.
func (k keyspace) kvs(all []*apiv1.KeyVal) []*mvccpb.KeyValue {
	made, out := make([]mvccpb.KeyValue, len(all)), make([]*mvccpb.KeyValue, len(all))
	for i, kv := range all {
		out[i] = &made[i]
		k.translate(kv, out[i])
	}
	return out
}

func (k keyspace) translate(kv *apiv1.KeyVal, out *mvccpb.KeyValue) {
	out.Key, out.Value, out.Lease = k.strip(kv.GetKey()), kv.GetValue(), kv.GetLease()
	out.CreateRevision, out.ModRevision, out.Version = kv.GetCreateRevision(), kv.GetModRevision(), kv.GetVersion()
}
