package mirror

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
)

const page = 500 // keys of one call

// etcdKeys are the keys of a prefix at a server of etcd's protocol, version 3.
type etcdKeys struct {
	conn   *grpc.ClientConn
	prefix string
	login  string // USER:PASSWORD, or a token; "" without authentication
	token  string // of the login
}

func (k *etcdKeys) close() { _ = k.conn.Close() }

// authorized returns ctx with a token. One of etcd ends after a while, so each round asks for a new one.
func (k *etcdKeys) authorized(ctx context.Context, renew bool) (context.Context, error) {
	if k.login == "" {
		return ctx, nil
	}
	if user, password, ok := strings.Cut(k.login, ":"); !ok {
		k.token = k.login
	} else if renew || k.token == "" {
		got, err := pb.NewAuthClient(k.conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
		if err != nil {
			return nil, told(err)
		}
		k.token = got.GetToken()
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", k.token), nil
}

// list reads the pages at one revision.
func (k *etcdKeys) list(ctx context.Context) (map[string]entry, uint64, error) {
	ctx, err := k.authorized(ctx, true)
	if err != nil {
		return nil, 0, err
	}
	req := &pb.RangeRequest{Key: from(k.prefix), RangeEnd: end(k.prefix), Limit: page}
	entries, size := make(map[string]entry), 0
	for {
		got, err := pb.NewKVClient(k.conn).Range(ctx, req)
		if err != nil {
			return nil, 0, told(err)
		}
		if req.Revision == 0 {
			req.Revision = got.GetHeader().GetRevision()
		}
		for _, kv := range got.GetKvs() {
			size += len(kv.Key) + len(kv.Value)
			entries[string(kv.Key)] = entry{value: kv.Value, bound: kv.Lease != 0}
		}
		if err := fits(len(entries), size); err != nil || !got.GetMore() || len(got.GetKvs()) == 0 {
			return entries, uint64(req.Revision), err
		}
		req.Key = append(bytes.Clone(got.Kvs[len(got.Kvs)-1].Key), 0)
	}
}

// changed waits for the first event after a revision. If the revision is compacted, it reports a change.
func (k *etcdKeys) changed(ctx context.Context, since uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx, err := k.authorized(ctx, false)
	if err != nil {
		return err
	}
	w, err := pb.NewWatchClient(k.conn).Watch(ctx)
	if err != nil {
		return told(err)
	}
	create := &pb.WatchCreateRequest{Key: from(k.prefix), RangeEnd: end(k.prefix), StartRevision: int64(since) + 1}
	if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil && !errors.Is(err, io.EOF) {
		return told(err)
	}
	for {
		got, err := w.Recv()
		switch {
		case err != nil:
			return told(err)
		case len(got.GetEvents()) > 0, got.GetCompactRevision() > 0:
			return nil
		case got.GetCanceled():
			return fault.New("", fault.Unavailable, "the watch was refused: %s", got.GetCancelReason())
		}
	}
}

func (k *etcdKeys) put(ctx context.Context, name string, e entry, _ bool) error {
	ctx, err := k.authorized(ctx, false)
	if err == nil {
		_, err = pb.NewKVClient(k.conn).Put(ctx, &pb.PutRequest{Key: []byte(name), Value: e.value})
	}
	return told(err)
}

func (k *etcdKeys) remove(ctx context.Context, name string) error {
	ctx, err := k.authorized(ctx, false)
	if err == nil {
		_, err = pb.NewKVClient(k.conn).DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(name)})
	}
	return told(err)
}

// from and end are the range of a prefix. All keys are those from the zero byte on.
func from(prefix string) []byte {
	if prefix == "" {
		return []byte{0}
	}
	return []byte(prefix)
}

func end(prefix string) []byte {
	last := []byte(prefix)
	for len(last) > 0 {
		if last[len(last)-1]++; last[len(last)-1] != 0 {
			return last
		}
		last = last[:len(last)-1]
	}
	return []byte{0}
}

// told converts an error of gRPC.
func told(err error) error { return calls.Fault("", err) }
