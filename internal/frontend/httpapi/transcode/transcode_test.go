package transcode

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// echo answers with what it was asked.
type echo struct {
	api.UnimplementedLockServiceServer
	api.UnimplementedCoordinationServiceServer
}

func (echo) Lock(_ context.Context, r *api.LockRequest) (*api.LockResponse, error) {
	if r.GetName() == "taken" {
		return nil, fault.New("test.Lock", fault.Conflict, "is taken")
	}
	return &api.LockResponse{Key: r.GetName(), FencingToken: r.GetLeaseId(), Count: r.GetPermits()}, nil
}

func (echo) Watch(s grpc.BidiStreamingServer[api.WatchKeysRequest, api.WatchKeysResponse]) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		for range 2 {
			if err := s.Send(&api.WatchKeysResponse{WatchId: r.GetStartRevision(), Reason: r.GetKey()}); err != nil {
				return err
			}
		}
	}
}

func calls() map[string]Call {
	all := map[string]Call{}
	for _, c := range append(Of(echo{}, &api.LockService_ServiceDesc, nil, nil), Of(echo{}, &api.CoordinationService_ServiceDesc, nil, nil)...) {
		all[c.Pattern] = c
	}
	return all
}

// ask makes a call through a router, and returns its answers in JSON.
func ask(t *testing.T, pattern, target, body string) (answers []string, err error) {
	mux, c := http.NewServeMux(), calls()[pattern]
	mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
		var req proto.Message
		if req, err = c.Request(r, []byte(body)); err == nil {
			err = c.Run(t.Context(), req, func(m proto.Message) error {
				text, err := JSON(m)
				answers = append(answers, string(text))
				return err
			})
		}
	})
	method, _, _ := strings.Cut(pattern, " ")
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, target, nil))
	return answers, err
}

// TestCalls: fields come from path, parameters and body, and every answer has all its fields.
func TestCalls(t *testing.T) {
	got, err := ask(t, "POST /v1/coordination/locks/{name}", "/v1/coordination/locks/a%2Fb", `{"lease_id":"9007199254740993","permits":2,"metadata":null}`)
	require.NoError(t, err)
	require.Equal(t, []string{`{"key":"a/b","fencing_token":"9007199254740993","acquired":false,"count":2,"fencing_tokens":[]}`}, got)
	_, err = ask(t, "POST /v1/coordination/locks/{name}", "/v1/coordination/locks/taken", `{}`)
	require.ErrorIs(t, err, fault.Conflict)
	got, err = ask(t, "GET /v1/coordination/watch", "/v1/coordination/watch?key=%C3%A4&start_revision=7", "")
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Contains(t, got[0], `"watch_id":"7"`)
	require.Contains(t, got[0], `"reason":"ä"`)
}

// TestBytesOfURLs stand for themselves.
func TestBytesOfURLs(t *testing.T) {
	c := calls()["GET /v1/coordination/keys"]
	req, err := c.Request(httptest.NewRequest("GET", "/v1/coordination/keys?key=%FF%00&order=MOD_REVISION&prefix=true&limit=7", nil), nil)
	require.NoError(t, err)
	require.True(t, proto.Equal(&api.RangeRequest{Key: []byte{0xff, 0}, Order: api.TxnRange_MOD_REVISION, Prefix: true, Limit: 7}, req))
}

// TestRefusals name the path of the field.
func TestRefusals(t *testing.T) {
	for body, field := range map[string]string{
		``: "body", `[]`: "body", `{}{}`: "body", `{"then":{}}`: "then", `{"then":[7]}`: "then[0]", `{"colour":1}`: "colour", `{"Then":[]}`: "Then",
		`{"then":[{"put":{"key":"YQ==","key":"YQ=="}}]}`:     "then[0].put.key",
		`{"then":[{"put":{"key":"Y"}}]}`:                     "then[0].put.key",
		`{"then":[{"put":{"key":7}}]}`:                       "then[0].put.key",
		`{"then":[{"put":{"lease":1.5}}]}`:                   "then[0].put.lease",
		`{"then":[{"put":{"lease":9223372036854775808}}]}`:   "then[0].put.lease",
		`{"then":[{"put":{"prev_kv":"true"}}]}`:              "then[0].put.prev_kv",
		`{"then":[{"put":{"prevKv":true}}]}`:                 "then[0].put.prevKv",
		`{"else":[{"put":{}},{"range":{"limit":-1}}]}`:       "else[1].range.limit",
		`{"else":[{"range":{"limit":4294967296}}]}`:          "else[0].range.limit",
		`{"else":[{"range":{"order":1}}]}`:                   "else[0].range.order",
		`{"else":[{"range":{"order":"SIZE"}}]}`:              "else[0].range.order",
		`{"attempt":{"client":-1}}`:                          "attempt.client",
		`{"compare":[{"lock":"` + "\xff" + `"}]}`:            "compare[0].lock",
		strings.Repeat(`{"then":[`, 40):                      "body",
		`{"then":[{"put":{},"delete":{},"range":{}}]}`:       "then[0]",
		`{"then":[{"put":{"value":[1]}}], "else":[], "n":1}`: "n",
	} {
		_, err := ask(t, "POST /v1/coordination/txn", "/v1/coordination/txn", body)
		require.ErrorIs(t, err, fault.Invalid, body)
		require.Equal(t, field, fault.FieldOf(err), "%s: %v", body, err)
	}
	for target, field := range map[string]string{
		"?what=1": "what", "?prefix=yes": "prefix", "?limit=x": "limit", "?key=a&key=b": "key", "?order=1": "order", "?revision=1e3": "revision", "?key=%zz": "url",
	} {
		_, err := ask(t, "GET /v1/coordination/keys", "/v1/coordination/keys"+target, "")
		require.ErrorIs(t, err, fault.Invalid, target)
		require.Equal(t, field, fault.FieldOf(err), "%s: %v", target, err)
	}
	_, err := ask(t, "POST /v1/coordination/locks/{name}", "/v1/coordination/locks/a", `{"name":"b"}`)
	require.Equal(t, "name", fault.FieldOf(err))
	_, err = ask(t, "POST /v1/coordination/locks/{name}", "/v1/coordination/locks/%FF", `{}`)
	require.Equal(t, "name", fault.FieldOf(err))
}

// FuzzRequest: no body causes a panic, and what is understood survives its own JSON.
func FuzzRequest(f *testing.F) {
	f.Add(`{"compare":[{"key":"YQ==","target":"VALUE","value":"/w=="}],"then":[{"put":{"key":"YQ==","lease":"7"}}],"attempt":{"client":"1"}}`)
	f.Add(`{"else":[{"range":{"limit":1,"order":"KEY","descending":true}},{"delete":null}]}`)
	kind := (&api.TxnRequest{}).ProtoReflect()
	f.Fuzz(func(t *testing.T, text string) {
		first := kind.New()
		if object(first, []byte(text)) != nil {
			return
		}
		again, err := JSON(first.Interface())
		require.NoError(t, err)
		second := kind.New()
		require.NoError(t, object(second, again), "%s", again)
		require.True(t, proto.Equal(first.Interface(), second.Interface()))
	})
}

// TestKinds: every field of an annotated request has a kind that a request can hold.
func TestKinds(t *testing.T) {
	for _, c := range calls() {
		for _, f := range append(c.Parameters(), c.Path()...) {
			text := map[protoreflect.Kind]string{protoreflect.BoolKind: "true"}[f.Kind()]
			if f.Kind() == protoreflect.EnumKind {
				text = string(f.Enum().Values().Get(0).Name())
			} else if text == "" {
				text = "1"
			}
			_, err := scalar(f, text)
			require.NoError(t, err, f.FullName())
		}
	}
}

// TestPieces: the pieces of a long answer are its JSON, and none is longer than an element.
func TestPieces(t *testing.T) {
	value := bytes.Repeat([]byte("v\x00\xff"), 40<<10)
	kvs := []*api.KeyVal{{Key: []byte("a"), Value: value, Lease: -1}, {}, {Key: []byte("c/\xff"), Value: value}}
	span := &api.RangeResponse{Header: &api.Header{Revision: 7}, Kvs: kvs, Next: []byte("next"), Revision: 7, Count: 3}
	for _, m := range []proto.Message{
		span, &api.RangeResponse{}, &api.RangeResponse{Kvs: kvs[1:2]},
		&api.TxnResponse{Succeeded: true, Reason: "because \"kvs\":[]", Results: []*api.TxnStepResult{{}, {Kvs: kvs}, {}}},
		&api.WatchKeysResponse{Events: []*api.KeyEvent{{Kv: kvs[0], PrevKv: kvs[2]}}, Error: &api.Error{Message: "m"}},
	} {
		want, err := JSON(m)
		require.NoError(t, err)
		var got []byte
		largest := 0
		require.NoError(t, Pieces(m, func(piece []byte) {
			got, largest = append(got, piece...), max(largest, len(piece))
		}))
		require.Equal(t, string(want), string(got))
		require.LessOrEqual(t, largest, 170<<10)
	}
}
