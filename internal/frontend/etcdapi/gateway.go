package etcdapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb/gw"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// maxBody bounds a request over JSON, in which bytes are in base64.
const maxBody = 2 * maxRequest

// handler serves gRPC and JSON on one connection, as etcd does.
func (s *Server) handler() (http.Handler, error) {
	web, err := s.web()
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer access.Serving(r.Context())()
		bear(r.Header)
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			attended(r, func(r *http.Request) { s.grpc.ServeHTTP(w, r) })
			return
		}
		// Pages of browsers have no business here, and no client of etcd sends an Origin.
		if err := origin.Check(r); err != nil || r.Header.Get("Origin") != "" {
			http.Error(w, "etcdserver: requests of web pages are refused", http.StatusForbidden)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 needs none
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		attended(r, func(r *http.Request) { web.ServeHTTP(w, r) })
	}), err
}

// bear puts the token of a client of etcd where ours has it: etcd's have no scheme.
func bear(h http.Header) {
	token := h.Get("Authorization")
	if token == "" {
		token = h.Get(rpctypes.TokenFieldNameGRPC)
	}
	if token != "" && !strings.Contains(token, " ") {
		h.Set("Authorization", "Bearer "+token)
	}
}

// web serves JSON. Its calls run in this process, as those over gRPC.
func (s *Server) web() (http.Handler, error) {
	calls, conn, ctx := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{Marshaler: marshaler()})), newConn(s), context.Background()
	err := errors.Join(
		gw.RegisterKVHandlerClient(ctx, calls, pb.NewKVClient(conn)), gw.RegisterLeaseHandlerClient(ctx, calls, pb.NewLeaseClient(conn)),
		gw.RegisterWatchHandlerClient(ctx, calls, pb.NewWatchClient(conn)), gw.RegisterClusterHandlerClient(ctx, calls, pb.NewClusterClient(conn)),
		gw.RegisterMaintenanceHandlerClient(ctx, calls, pb.NewMaintenanceClient(conn)), gw.RegisterAuthHandlerClient(ctx, calls, pb.NewAuthClient(conn)),
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"etcdserver": Version, "etcdcluster": Version})
	})
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("/v3/", func(w http.ResponseWriter, r *http.Request) {
		caller := &peer.Peer{}
		if r.TLS != nil {
			caller.AuthInfo = credentials.TLSInfo{State: *r.TLS}
		}
		calls.ServeHTTP(w, r.WithContext(peer.NewContext(r.Context(), caller)))
	})
	return mux, err
}

// health says whether this peer sees a group that works.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if g, err := s.Group(r.Context()); err != nil || g.ID == "" || g.Missing != "" {
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

// marshaler has the JSON of etcd: the names of fields are those of the messages.
func marshaler() *runtime.JSONPb {
	return &runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true}, UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true}}
}
