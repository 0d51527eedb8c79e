package etcdclient

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// TestDifferential plays the same random calls at a peer and at etcd itself, and compares what they answer: keys, values, revisions from the first
// call on, counts, errors with their texts, events of watches. What may differ stands in docs/howto/from-etcd.md, and is not asked. ETCD_DIFFERENTIAL is the number of calls, ETCD_SEED the seed.
func TestDifferential(t *testing.T) {
	calls, err := strconv.Atoi(os.Getenv("ETCD_DIFFERENTIAL"))
	if err != nil {
		t.Skip("builds etcd: set ETCD_DIFFERENTIAL=24000, the number of calls")
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("ETCD_SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("ETCD_SEED=%d", seed)
	d := &differential{t: t, Rand: rand.New(rand.NewPCG(seed, 0))}
	for _, address := range []string{etcd(t), peer(t)} {
		d.sides = append(d.sides, newSide(t, address))
	}
	for n := range calls {
		d.call(n)
		if n%100 == 99 {
			d.watch(n)
		}
	}
}

// etcd runs etcd's server, and returns its address for clients.
func etcd(t *testing.T) string {
	folder := t.TempDir()
	program := filepath.Join(folder, "etcd")
	peers.Output(t, folder, "go", "mod", "init", "etcd")
	peers.Output(t, folder, "go", "get", "go.etcd.io/etcd/server/v3@"+suitesVersion)
	peers.Output(t, folder, "go", "build", "-o", program, "go.etcd.io/etcd/server/v3")
	var at [2]string
	for i := range at {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		at[i] = l.Addr().String()
		require.NoError(t, l.Close())
	}
	run := exec.Command(program, "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+at[0], "--advertise-client-urls", "http://"+at[0],
		"--listen-peer-urls", "http://"+at[1], "--initial-advertise-peer-urls", "http://"+at[1], "--initial-cluster", "default=http://"+at[1],
		"--unsafe-no-fsync", "--log-level", "error")
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = run.Wait()
	})
	return at[0]
}

// side is one of the two servers.
type side struct {
	pb.KVClient
	pb.LeaseClient
	client *clientv3.Client
	began  int64 // revision before the first call
}

func newSide(t *testing.T, address string) *side {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: time.Minute, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	s := &side{pb.NewKVClient(c.ActiveConnection()), pb.NewLeaseClient(c.ActiveConnection()), c, 0}
	r, err := c.Get(t.Context(), "a")
	require.NoError(t, err)
	s.began = r.Header.Revision
	return s
}

// differential makes calls. Revisions in them count from the first call.
type differential struct {
	*rand.Rand
	t         *testing.T
	sides     []*side
	revision  int64 // present
	compacted int64
}

// play makes a call at both sides, and compares the answers.
func (d *differential) play(n int, made func(began int64) proto.Message) {
	d.t.Helper()
	var said [2]string
	for i, s := range d.sides {
		call := made(s.began)
		answer, err := s.send(d.t.Context(), call)
		said[i] = fmt.Sprintf("%d %s", status.Code(err), status.Convert(err).Message())
		if err == nil {
			revision := revisionOf(answer) - s.began
			normal(answer.ProtoReflect().Interface(), s.began)
			said[i] = fmt.Sprintf("revision %d: %s", revision, prototext.Format(answer))
			d.revision = max(d.revision, revision)
		}
	}
	if said[0] != said[1] {
		for _, s := range d.sides { // what they have now
			r, err := s.Range(d.t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
			d.t.Logf("revisions count from %d, %v: %s", s.began, err, prototext.Format(r))
		}
	}
	require.Equal(d.t, said[0], said[1], "call %d: etcd, and a peer, of\n%s", n, prototext.Format(made(0)))
}

func (s *side) send(ctx context.Context, call proto.Message) (proto.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	switch r := call.(type) {
	case *pb.RangeRequest:
		return s.Range(ctx, r)
	case *pb.PutRequest:
		return s.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		return s.DeleteRange(ctx, r)
	case *pb.TxnRequest:
		return s.Txn(ctx, r)
	case *pb.CompactionRequest:
		return s.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		return s.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		return s.LeaseRevoke(ctx, r)
	}
	r, err := s.LeaseTimeToLive(ctx, call.(*pb.LeaseTimeToLiveRequest))
	if err == nil {
		r.TTL = min(r.TTL, 1) // time passes
		slices.SortFunc(r.Keys, slices.Compare)
	}
	return r, err
}

func revisionOf(answer proto.Message) int64 {
	return answer.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader().GetRevision()
}

// call makes one random call.
func (d *differential) call(n int) {
	made := func() func(int64) proto.Message {
		switch d.IntN(20) {
		case 0, 1, 2, 3, 4:
			return d.put()
		case 5, 6, 7, 8, 9:
			return d.read()
		case 10, 11:
			return d.remove()
		case 12:
			id := int64(d.IntN(6))
			return func(int64) proto.Message { return &pb.LeaseGrantRequest{ID: 100 + id, TTL: 3600} }
		case 13:
			id := int64(d.IntN(8))
			return func(int64) proto.Message { return &pb.LeaseRevokeRequest{ID: 100 + id} }
		case 14:
			id, keys := int64(d.IntN(8)), d.IntN(2) == 0
			return func(int64) proto.Message { return &pb.LeaseTimeToLiveRequest{ID: 100 + id, Keys: keys} }
		case 15:
			if d.IntN(10) > 0 {
				return d.read()
			}
			at := d.compacted + d.Int64N(30) - 3
			if at > d.compacted && at <= d.revision {
				d.compacted = at
			}
			return func(began int64) proto.Message { return &pb.CompactionRequest{Revision: max(1, began+at)} }
		}
		t := d.txn(2, d.IntN(3) == 0)
		return func(began int64) proto.Message { return t(began) }
	}()
	d.play(n, made)
}

func (d *differential) key() []byte { return []byte{'a' + byte(d.IntN(6))} }

// span is a key, a range, a prefix, or all keys.
func (d *differential) span() (key, end []byte) {
	switch d.IntN(5) {
	case 0:
		return []byte{0}, []byte{0}
	case 1:
		return d.key(), []byte{0}
	case 2:
		return d.key(), d.key() // may be empty
	}
	return d.key(), nil
}

// at is a revision: mostly the present, 0; else a past one, one to come, or one that is compacted.
func (d *differential) at() (revision int64, is bool) {
	if d.IntN(3) > 0 {
		return 0, false
	}
	return d.revision - d.Int64N(40) + 2, true
}

func (d *differential) put() func(int64) proto.Message {
	p := &pb.PutRequest{Key: d.key(), Value: fmt.Append(nil, d.IntN(1000)), PrevKv: d.IntN(3) == 0}
	switch d.IntN(12) {
	case 0, 1, 2:
		p.Lease = 100 + d.Int64N(8)
	case 3:
		p.IgnoreValue, p.Value = true, nil
	case 4:
		p.IgnoreLease = true
	case 5:
		p.IgnoreValue = true
	case 6:
		p.Key = nil
	}
	return func(int64) proto.Message { return proto.CloneOf(p) }
}

func (d *differential) read() func(int64) proto.Message {
	r := &pb.RangeRequest{KeysOnly: d.IntN(4) == 0, CountOnly: d.IntN(6) == 0, Serializable: d.IntN(4) == 0}
	r.Key, r.RangeEnd = d.span()
	at, is := d.at()
	if d.IntN(3) == 0 {
		r.Limit = d.Int64N(5)
	}
	if d.IntN(2) == 0 {
		r.SortOrder, r.SortTarget = pb.RangeRequest_SortOrder(1+d.IntN(2)), pb.RangeRequest_SortTarget(d.IntN(5))
	}
	var bounds [4]int64
	if d.IntN(6) == 0 {
		for i := range bounds {
			if d.IntN(2) == 0 {
				bounds[i] = max(1, d.revision-d.Int64N(50))
			}
		}
	}
	return func(began int64) proto.Message {
		out := proto.CloneOf(r)
		if is {
			out.Revision = max(0, began+at)
		}
		for i, to := range []*int64{&out.MinModRevision, &out.MaxModRevision, &out.MinCreateRevision, &out.MaxCreateRevision} {
			if bounds[i] > 0 {
				*to = began + bounds[i]
			}
		}
		return out
	}
}

func (d *differential) remove() func(int64) proto.Message {
	r := &pb.DeleteRangeRequest{PrevKv: d.IntN(2) == 0}
	r.Key, r.RangeEnd = d.span()
	return func(int64) proto.Message { return proto.CloneOf(r) }
}

// removeWithin is remove in a transaction. There etcd takes an end of "\x00" for none when it looks for keys that two operations change, so it
// deletes what it has just put; a peer refuses that.
func (d *differential) removeWithin() func(int64) proto.Message {
	r := d.remove()(0).(*pb.DeleteRangeRequest)
	if string(r.RangeEnd) == "\x00" {
		r.RangeEnd = []byte("z")
	}
	return func(int64) proto.Message { return proto.CloneOf(r) }
}

// txn makes a transaction, with others in it up to a depth. Either all of them delete and none puts, or only the outermost one deletes: etcd lets
// one within delete what an earlier one within has put, and a peer refuses that.
func (d *differential) txn(depth int, deletes bool) func(int64) *pb.TxnRequest {
	var compares []func(int64) *pb.Compare
	for range d.IntN(3) {
		compares = append(compares, d.compare())
	}
	branch := func() (ops []func(int64) *pb.RequestOp) {
		for range d.IntN(4) {
			var of func(int64) proto.Message
			switch kind := d.IntN(6); {
			case kind == 0 && depth > 0:
				t := d.txn(depth-1, deletes)
				of = func(began int64) proto.Message { return t(began) }
			case kind < 3:
				of = d.read()
			case deletes, kind == 3 && depth == 2:
				of = d.removeWithin()
			default:
				of = d.put()
			}
			ops = append(ops, func(began int64) *pb.RequestOp { return operation(of(began)) })
		}
		return ops
	}
	then, otherwise := branch(), branch()
	return func(began int64) *pb.TxnRequest {
		out := &pb.TxnRequest{}
		for _, c := range compares {
			out.Compare = append(out.Compare, c(began))
		}
		for _, op := range then {
			out.Success = append(out.Success, op(began))
		}
		for _, op := range otherwise {
			out.Failure = append(out.Failure, op(began))
		}
		return out
	}
}

func operation(call proto.Message) *pb.RequestOp {
	switch r := call.(type) {
	case *pb.RangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
	case *pb.PutRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	case *pb.DeleteRangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: call.(*pb.TxnRequest)}}
}

func (d *differential) compare() func(int64) *pb.Compare {
	c := &pb.Compare{Key: d.key(), Result: pb.Compare_CompareResult(d.IntN(4)), Target: pb.Compare_CompareTarget(d.IntN(5))}
	if d.IntN(4) == 0 {
		c.Key, c.RangeEnd = d.span()
	}
	past, none := max(0, d.revision-d.Int64N(20)), d.IntN(4) == 0
	version, value, lease := d.Int64N(4), fmt.Append(nil, d.IntN(1000)), 100+d.Int64N(6)
	if c.Target == pb.Compare_LEASE && (c.Result == pb.Compare_LESS || c.Result == pb.Compare_GREATER) {
		lease = 0
	}
	return func(began int64) *pb.Compare {
		out, revision := proto.CloneOf(c), began+past
		if none {
			revision = 0
		}
		switch c.Target {
		case pb.Compare_VERSION:
			out.TargetUnion = &pb.Compare_Version{Version: version}
		case pb.Compare_CREATE:
			out.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: revision}
		case pb.Compare_MOD:
			out.TargetUnion = &pb.Compare_ModRevision{ModRevision: revision}
		case pb.Compare_VALUE:
			out.TargetUnion = &pb.Compare_Value{Value: value}
		case pb.Compare_LEASE:
			out.TargetUnion = &pb.Compare_Lease{Lease: lease}
		}
		return out
	}
}

// watch compares the events of a watch from a past revision to the present one.
func (d *differential) watch(n int) {
	from := d.revision - d.Int64N(60)
	var more []clientv3.OpOption
	last := int64(0) // revision of the last event, from the present one back
	if d.IntN(2) == 0 {
		more = append(more, clientv3.WithPrevKV())
	}
	switch d.IntN(4) {
	case 0:
		more = append(more, clientv3.WithFilterPut())
	case 1:
		more, last = append(more, clientv3.WithFilterDelete()), 1
	}
	key, end := d.span()
	if len(end) > 0 {
		more = append(more, clientv3.WithRange(string(end)))
	}
	// The last change ends the watch.
	d.play(n, func(int64) proto.Message { return &pb.PutRequest{Key: key} })
	d.play(n, func(int64) proto.Message { return &pb.DeleteRangeRequest{Key: key} })
	var said [2][]string
	for i, s := range d.sides {
		ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
		until := s.began + d.revision - last
		for got := range s.client.Watch(ctx, string(key), append(more, clientv3.WithRev(max(1, s.began+from)), clientv3.WithProgressNotify())...) {
			if err := got.Err(); err != nil {
				said[i] = append(said[i], fmt.Sprintf("%v, compacted at %d", err, got.CompactRevision-s.began))
				break
			}
			said[i] = append(said[i], eventsOf(got, s.began)...)
			if len(got.Events) > 0 && got.Events[len(got.Events)-1].Kv.ModRevision >= until {
				break
			}
		}
		cancel()
	}
	require.Equal(d.t, said[0], said[1], "watch after call %d of %q to %q from %d", n, key, end, from)
}

// eventsOf returns events as text, by revision and key.
func eventsOf(r clientv3.WatchResponse, began int64) (all []string) {
	slices.SortStableFunc(r.Events, func(a, b *clientv3.Event) int {
		return cmp.Or(cmp.Compare(a.Kv.ModRevision, b.Kv.ModRevision), slices.Compare(a.Kv.Key, b.Kv.Key))
	})
	for _, e := range r.Events {
		line := fmt.Sprintf("%v %q=%q at %d, created at %d, version %d, lease %d", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision-began,
			max(0, e.Kv.CreateRevision-began), e.Kv.Version, e.Kv.Lease)
		if e.PrevKv != nil {
			line += fmt.Sprintf("; was %q at %d", e.PrevKv.Value, e.PrevKv.ModRevision-began)
		}
		all = append(all, line)
	}
	return all
}

// normal takes out of an answer who gave it, and counts its revisions from the first call.
func normal(m proto.Message, began int64) {
	switch r := m.(type) {
	case *pb.RangeResponse:
		for _, kv := range r.Kvs {
			kv.CreateRevision, kv.ModRevision = kv.CreateRevision-began, kv.ModRevision-began
			if len(kv.Value) == 0 { // with keys_only etcd leaves out leases since 3.7
				kv.Lease = 0
			}
		}
	case *pb.PutResponse:
		if r.PrevKv != nil {
			r.PrevKv.CreateRevision, r.PrevKv.ModRevision = r.PrevKv.CreateRevision-began, r.PrevKv.ModRevision-began
		}
	case *pb.DeleteRangeResponse:
		for _, kv := range r.PrevKvs {
			kv.CreateRevision, kv.ModRevision = kv.CreateRevision-began, kv.ModRevision-began
		}
	case *pb.TxnResponse:
		for _, one := range r.Responses {
			switch of := one.Response.(type) {
			case *pb.ResponseOp_ResponseRange:
				normal(of.ResponseRange, began)
			case *pb.ResponseOp_ResponsePut:
				normal(of.ResponsePut, began)
			case *pb.ResponseOp_ResponseDeleteRange:
				normal(of.ResponseDeleteRange, began)
			case *pb.ResponseOp_ResponseTxn:
				normal(of.ResponseTxn, began)
			}
		}
	}
	r := m.ProtoReflect()
	r.Clear(r.Descriptor().Fields().ByName("header"))
}
