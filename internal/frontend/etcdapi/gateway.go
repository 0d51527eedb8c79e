package etcdapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// maxBody bounds a request over JSON, in which bytes are in base64.
const maxBody = 2 * maxRequest

// maxUnread bounds what is read of a request after its refusal, as net/http does.
const maxUnread = 256 << 10

// handler serves JSON.
func (s *Server) handler() http.Handler {
	web := s.web()
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer access.Serving(r.Context())()
		// Pages of browsers have no business here, and no client of etcd sends an Origin.
		if err := origin.Check(r); err != nil || r.Header.Get("Origin") != "" {
			http.Error(w, "etcdserver: requests of web pages are refused", http.StatusForbidden)
			return
		}
		text := &text{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), room: func() (func(), error) { return s.Requests.TakeBytes(r.Context(), "etcdapi", maxBody, 0) }}
		defer text.end()
		r.Body = text
		web.ServeHTTP(w, r)
	})
}

// text is a body of JSON. From a size on it takes room for the largest one, until the call ends.
type text struct {
	io.ReadCloser
	room    func() (release func(), err error)
	read    int
	release func()
}

// Read implements io.Reader.
func (t *text) Read(p []byte) (n int, err error) {
	if n, err = t.ReadCloser.Read(p); err != nil {
		return n, err
	}
	if t.read += n; t.read > access.Small && t.release == nil {
		if t.release, err = t.room(); err != nil {
			err = toStatus(err)
		}
	}
	return n, err
}

func (t *text) end() {
	if t.release != nil {
		t.release()
	}
}

// bear puts the token of a client of etcd where ours has it: etcd's have no scheme.
func bear(ctx context.Context) context.Context {
	for _, name := range []string{"authorization", rpctypes.TokenFieldNameGRPC} {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			if !strings.Contains(values[0], " ") {
				md, _ := metadata.FromIncomingContext(ctx)
				md.Set("authorization", "Bearer "+values[0])
				return metadata.NewIncomingContext(ctx, md)
			}
			return ctx
		}
	}
	return ctx
}

// web serves JSON. Its calls run in this process, within the interceptors of those over gRPC.
func (s *Server) web() http.Handler {
	mux := http.NewServeMux()
	for _, d := range services() {
		for _, c := range transcode.Of(s, d, s.intercept, s.interceptStream) {
			mux.HandleFunc(c.Pattern, func(w http.ResponseWriter, r *http.Request) { call(&c, w, r) })
		}
	}
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"etcdserver": Version, "etcdcluster": Version})
	})
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	return mux
}

// call makes a call for the requests in a body: one, or of a stream one after another. The answers of a stream have a
// line each.
func call(c *transcode.Call, w http.ResponseWriter, r *http.Request) {
	streams, begun := c.Descriptor.IsStreamingServer(), false
	control := http.NewResponseController(w)
	if streams {
		_ = control.EnableFullDuplex() // not for other calls: their answer would close a connection with an unread request, and be lost
	}
	answer := func(code int, kind string, m proto.Message) error {
		m, err := parsed(m)
		if err != nil {
			return err
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m) // clients need the names of the messages
		if err != nil {
			return err
		}
		if streams {
			text = fmt.Appendf(nil, "{\"%s\":%s}\n", kind, text)
		}
		if !begun {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			begun = true
		}
		if _, err = w.Write(text); err == nil && streams {
			err = control.Flush()
		}
		return err
	}
	body := json.NewDecoder(r.Body)
	err := c.Exchange(arrived(r), func(m proto.Message) error {
		var text json.RawMessage
		if err := body.Decode(&text); errors.Is(err, io.EOF) && !c.Descriptor.IsStreamingClient() {
			return nil // an empty request
		} else if err != nil {
			return malformed(err)
		}
		return malformed(protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, m))
	}, func(m proto.Message) error {
		defer budget.Written(m)
		return answer(http.StatusOK, "result", m)
	})
	if err != nil {
		if streams && !begun && r.ContentLength > 0 { // the rest of the request arrives without an answer, as above
			_, _ = io.CopyN(io.Discard, r.Body, maxUnread)
		}
		failed := status.Convert(err)
		_ = answer(httpCode(failed.Code()), "error", failed.Proto()) // a client that has left reads nothing
	}
}

// malformed is the error for a request that cannot be read. The end of requests and nil stay unchanged.
func malformed(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return status.Error(codes.InvalidArgument, "etcdserver: malformed request: "+err.Error())
}

// arrived returns the context of a call over JSON, with what gRPC would know of its caller.
func arrived(r *http.Request) context.Context {
	caller := &peer.Peer{Addr: access.Remote(r.Context())}
	if r.TLS != nil {
		caller.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	md := metadata.MD{}
	for _, name := range []string{"authorization", rpctypes.TokenFieldNameGRPC} {
		md.Set(name, r.Header.Values(name)...)
	}
	return bear(metadata.NewIncomingContext(peer.NewContext(r.Context(), caller), md))
}

// httpCode is the table from codes of gRPC to those of HTTP, as of etcd's gateway.
func httpCode(c codes.Code) int {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Canceled:
		return 499 // nginx's number for a client that left
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// works reports whether this peer sees a group that works.
func (s *Server) works(ctx context.Context) bool {
	g, err := s.Group(ctx)
	return err == nil && g.ID != "" && g.Missing == ""
}

// ready says it to a supervisor.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if !s.works(r.Context()) {
		http.Error(w, "[-]linearizable_read failed: no leader", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// health says it as etcd does.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if !s.works(r.Context()) {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"health": "false", "reason": "RAFT NO LEADER"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"health": "true", "reason": ""})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // a client that has left reads nothing
}
