package cli

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

const (
	provider = "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"
	stranger = "12D3KooWGRUfK8KVbyWvWwwVhHWMzfBVBV9UAkpLuQhBzWcR9Jkz"
)

// fake is a peer with fixed answers. The id or type in a command decides the answer, so that
// a transcript shows the whole behaviour.
type fake struct {
	api.UnimplementedRecordServiceServer
	api.UnimplementedPeerServiceServer
	api.UnimplementedOperatorServiceServer
	api.UnimplementedEventServiceServer

	mu    sync.Mutex
	asked *pb.Query // the last query
	bound bool      // whether the last query had a deadline
	watch func()    // called after a watch has sent its events
}

// serve starts a peer on loopback and returns its address.
func serve(t *testing.T, f *fake) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	api.RegisterRecordServiceServer(s, f)
	api.RegisterPeerServiceServer(s, f)
	api.RegisterOperatorServiceServer(s, f)
	api.RegisterEventServiceServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// refuse is an error in the form of a peer.
func refuse(kind fault.Kind, field, message string) error {
	st, err := status.New(codes.Unknown, message).WithDetails(failed(kind, field, message))
	if err != nil {
		return err
	}
	return st.Err()
}

func failed(kind fault.Kind, field, message string) *api.Error {
	return &api.Error{Kind: uint32(kind), Field: field, Message: message, Op: "discovery.Test"}
}

func midnight(day int) time.Time { return time.Date(2026, 3, day, 0, 0, 0, 0, time.UTC) }

func receiptOf(id string, sequence uint64) *api.Receipt {
	return &api.Receipt{
		Id: id, Key: "/blackhole/services/compute/_/global/" + provider + "/" + id, Sequence: sequence,
		ExpiresAt: timestamppb.New(midnight(2)), Stored: &api.Stored{On: 9, Of: 10},
	}
}

// announce accepts all ids except "taken", "gone" and "full".
func announce(id string, sequence uint64) (*api.Receipt, *api.Error) {
	switch id {
	case "taken":
		return nil, failed(fault.Exists, "id", "is registered already")
	case "gone":
		return nil, failed(fault.NotFound, "", "this peer has no offer with this id")
	case "full":
		return nil, failed(fault.LimitReached, "", "100 services are registered already")
	default:
		return receiptOf(id, sequence), nil
	}
}

func toError(e *api.Error) error {
	if e == nil {
		return nil
	}
	return refuse(fault.Kind(e.Kind), e.Field, e.Message)
}

func (f *fake) Register(_ context.Context, r *api.RegisterRequest) (*api.RegisterResponse, error) {
	got, e := announce(r.GetService().GetId(), 1)
	return &api.RegisterResponse{Receipt: got}, toError(e)
}

func (f *fake) RegisterBatch(_ context.Context, r *api.RegisterBatchRequest) (*api.RegisterBatchResponse, error) {
	resp := &api.RegisterBatchResponse{}
	for i, s := range r.GetServices() {
		got, e := announce(s.GetId(), uint64(i)+1)
		result := &api.RegisterBatchResponse_Result{Outcome: &api.RegisterBatchResponse_Result_Receipt{Receipt: got}}
		if e != nil {
			result.Outcome = &api.RegisterBatchResponse_Result_Error{Error: e}
		}
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}

func (f *fake) Update(_ context.Context, r *api.UpdateRequest) (*api.UpdateResponse, error) {
	got, e := announce(r.GetService().GetId(), 2)
	return &api.UpdateResponse{Receipt: got}, toError(e)
}

func (f *fake) Withdraw(_ context.Context, r *api.WithdrawRequest) (*api.WithdrawResponse, error) {
	got, e := announce(r.GetId(), 3)
	return &api.WithdrawResponse{Receipt: got}, toError(e)
}

func (f *fake) Pause(_ context.Context, r *api.PauseRequest) (*api.PauseResponse, error) {
	if r.GetForMs() > 9000*3_600_000 {
		return nil, refuse(fault.Invalid, "for", "must be at most 8784h0m0s; 0 pauses until resumed")
	}
	got, e := announce(r.GetId(), 3)
	return &api.PauseResponse{Receipt: got}, toError(e)
}

func (f *fake) Resume(_ context.Context, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	got, e := announce(r.GetId(), 4)
	return &api.ResumeResponse{Receipt: got}, toError(e)
}

func (f *fake) List(context.Context, *api.ListRequest) (*api.ListResponse, error) {
	return &api.ListResponse{Records: []*api.Record{gpuBox(), bare()}}, nil
}

func (f *fake) Resolve(_ context.Context, r *api.ResolveRequest) (*api.ResolveResponse, error) {
	switch key := r.GetKey(); key {
	case "/blackhole/services/nothing":
		return nil, refuse(fault.NotFound, "", "no service is registered under the key")
	case "nonsense":
		return nil, refuse(fault.Invalid, "key", "must begin with /blackhole/services/")
	default:
		return &api.ResolveResponse{Record: gpuBox()}, nil
	}
}

func (f *fake) Get(_ context.Context, r *api.GetRequest) (*api.GetResponse, error) {
	if r.GetId() == "bare" {
		return &api.GetResponse{Record: bare()}, nil
	}
	return nil, refuse(fault.NotFound, "", "this peer has no offer with this id")
}

func (f *fake) Query(ctx context.Context, r *api.QueryRequest) (*api.QueryResponse, error) {
	f.mu.Lock()
	f.asked = r.GetQuery()
	_, f.bound = ctx.Deadline()
	f.mu.Unlock()
	answer := &api.QueryResponse{Source: "network", Complete: true, Total: 12, Took: durationpb.New(41 * time.Millisecond)}
	switch r.GetQuery().GetType() {
	case "nothing":
		answer.Total = 0
		return answer, nil
	case "scarce":
		answer.Total = 40
		if len(r.GetQuery().GetWhere()) > 0 {
			answer.Total = 30
		}
		for _, c := range r.GetQuery().GetWhere() {
			if c.GetField() == "compute.gpus.model" && len(c.GetValues()) > 0 {
				answer.Total = 0
				return answer, nil
			}
		}
		if r.GetQuery().GetNear() != nil && r.GetQuery().GetNear().RadiusKm != nil {
			answer.Total = 0
			return answer, nil
		}
	case "slow":
		return nil, status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	case "offline":
		return nil, refuse(fault.Unavailable, "", "no keeper of the cells answered")
	case "tight":
		return nil, refuse(fault.Invalid, "limit", "must be between 1 and 20, or 0 for the default")
	case "broken":
		return nil, refuse(fault.Internal, "", "disk on fire")
	case "cached":
		answer.Source, answer.Age = "cache", durationpb.New(90*time.Second)
		answer.TotalAtLeast = true
		answer.Complete, answer.IncompleteReason = false, "2 of 10 keepers did not answer"
	}
	answer.Results = []*api.QueryResult{
		{Record: gpuBox(), DistanceKm: proto.Float64(0.42), Score: 81.5, Explain: []string{"price 30.00 of 30", "location 10.00 of 10"}},
		{Record: hostile(), DistanceKm: proto.Float64(612.3), Score: 40, Explain: []string{"price 0.00 of 30"}},
		{Record: bare()},
	}
	for _, c := range r.GetQuery().GetWhere() {
		if c.GetField() == "id" {
			answer.Results = slices.DeleteFunc(answer.Results, func(found *api.QueryResult) bool {
				return !slices.Contains(c.GetValues(), found.GetRecord().GetService().GetId())
			})
		}
	}
	if !r.GetQuery().GetExplain() {
		for _, result := range answer.Results {
			result.Explain = nil
		}
	} else {
		answer.Notes = []string{"asked 10 keepers of 2 cells"}
	}
	return answer, nil
}

func (f *fake) Watch(r *api.WatchRequest, out grpc.ServerStreamingServer[api.WatchResponse]) error {
	if r.GetAfter() == "bad" {
		return refuse(fault.Invalid, "after", "is no cursor of a watch event")
	}
	kinds := []api.WatchResponse_Kind{
		api.WatchResponse_KIND_ADDED, api.WatchResponse_KIND_PROGRESS, api.WatchResponse_KIND_UPDATED,
		api.WatchResponse_KIND_WITHDRAWN, api.WatchResponse_KIND_RESET,
	}
	for i, kind := range kinds {
		resp := &api.WatchResponse{Kind: kind, Cursor: strconv.Itoa(i + 1)}
		if kind != api.WatchResponse_KIND_PROGRESS && kind != api.WatchResponse_KIND_RESET {
			resp.Record = bare()
		}
		if kind == api.WatchResponse_KIND_PROGRESS {
			resp.Complete, resp.Beyond = true, &api.Beyond{Records: 1, Features: []string{"auction.v2"}}
		}
		if err := out.Send(resp); err != nil {
			return err
		}
	}
	switch r.GetQuery().GetType() {
	case "brief":
		return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	case "endless":
		f.watch()
		<-out.Context().Done()
		return out.Context().Err()
	default:
		return refuse(fault.Unavailable, "", "the peer is shutting down")
	}
}

func (f *fake) Status(context.Context, *api.StatusRequest) (*api.StatusResponse, error) {
	return &api.StatusResponse{
		PeerId: provider, IdentityNew: true, Network: "office", NetworkClosed: true, Profile: "dev", Mode: "client", Name: "attic", Listen: []string{"/ip4/127.0.0.1/tcp/4801/p2p/" + provider},
		Uptime: durationpb.New(90061500 * time.Millisecond), Version: "v1.2.3",
		Peers: 7, RoutingTable: 5, RecordsKept: 1200, RecordsOwn: 2, RecordsUnstored: []string{"bare"}, Ready: true, ClockOffsetSeconds: proto.Float64(-0.2),
		Reach: &api.Reach{
			State: "relayed", Text: "behind NAT, relayed by …z7cVYtUo; hole punching works (1 of 2)", Since: timestamppb.New(midnight(1)),
			Relays: []string{stranger}, Direct: 6, Relayed: 1, Punched: 1, Unpunched: 1,
		},
		Group: &api.GroupStanding{
			GroupId: "9f", Role: "client", Term: 3, Leader: stranger, LeaderName: "cellar", Tolerance: "2 of 3 voters: no failure",
		},
	}, nil
}

func (f *fake) ListPeers(context.Context, *api.ListPeersRequest) (*api.ListPeersResponse, error) {
	return &api.ListPeersResponse{Peers: []*api.Peer{
		{Id: stranger, Addrs: []string{"/ip4/192.0.2.1/tcp/4801", "/ip4/192.0.2.1/udp/4801/quic-v1"}, Agent: "blackholed/v1.2.3", Name: "cellar", Latency: durationpb.New(1500 * time.Microsecond)},
		{Id: provider, Agent: "evil\x1b[2Jagent"},
	}}, nil
}

func (f *fake) Debug(_ *api.DebugRequest, out grpc.ServerStreamingServer[api.DebugResponse]) error {
	return errors.Join(
		out.Send(&api.DebugResponse{Name: "settings.txt", Content: []byte("profile: dev\n")}),
		out.Send(&api.DebugResponse{Name: "../../evil", Content: []byte("x")}),
	)
}

func (f *fake) Follow(r *api.FollowRequest, out grpc.ServerStreamingServer[api.FollowResponse]) error {
	if r.GetAfter() == "x" {
		return refuse(fault.Invalid, "after", "is malformed: send the id of the last event")
	}
	past := `{"kind":"past","notes":[]}`
	if r.GetSince() != "" {
		past = `{"kind":"past","notes":[{"at":"2026-01-02T03:04:05Z","kind":"leader","subject":"id","text":"peer-2 leads: peer-1\u001b[2J is silent"}]}`
	}
	news := `{"kind":"change","notes":[{"at":"2026-01-02T03:05:06Z","kind":"instance","subject":"pay/pay-1","text":"pay/pay-1 ended: removed by its owner"}]}`
	if err := errors.Join(out.Send(&api.FollowResponse{Id: "7", Data: []byte(past)}), out.Send(&api.FollowResponse{Id: "9", Data: []byte(news)})); err != nil {
		return err
	}
	return refuse(fault.Forbidden, "", "the token has expired")
}

func (f *fake) SetLogLevel(_ context.Context, r *api.SetLogLevelRequest) (*api.SetLogLevelResponse, error) {
	if r.GetLevel() == "loud" {
		return nil, refuse(fault.Invalid, "level", `must be one of debug, info, warn, error, not "loud"`)
	}
	return &api.SetLogLevelResponse{Previous: "info"}, nil
}

func (f *fake) OpenPage(context.Context, *api.OpenPageRequest) (*api.OpenPageResponse, error) {
	return &api.OpenPageResponse{Url: "http://localhost:8500/ui/"}, nil
}

// gpuBox has all values that a table shows.
func gpuBox() *api.Record {
	return &api.Record{
		Key: "/blackhole/services/compute/gpu/u33db2/" + provider + "/gpu-box", ContentId: "bafkreigpubox",
		Measured: &api.Measured{State: api.Measured_STATE_REACHABLE, RoundTrip: durationpb.New(12300 * time.Microsecond), CheckedAt: timestamppb.New(midnight(1))},
		Service: &pb.ServiceRecord{
			Id: "gpu-box", ProviderId: provider, Sequence: 7, Signature: []byte("signed"),
			CreatedAt: timestamppb.New(midnight(1)), UpdatedAt: timestamppb.New(midnight(1)), ExpiresAt: timestamppb.New(midnight(2)),
			Metadata: &pb.ServiceMetadata{
				Type: "compute", Subtype: "gpu", Name: "GPU & more", Version: "1.0",
				Endpoints: []string{"https://gpu.example.com/"}, Attributes: map[string]string{"tier": "no"},
			},
			Capabilities: &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{CpuCores: 16, MemoryMb: 64000, Gpus: []*pb.GPUInfo{{Model: "H100"}}}},
			Location:     &pb.GeoLocation{Latitude: proto.Float64(52.52), Longitude: proto.Float64(13.405), Country: "DE", Region: "Berlin", City: "Berlin"},
			Pricing:      &pb.PricingInfo{Currency: "USDC", BasePrice: proto.Float64(0.5), PriceUnit: "per-hour"},
			Health:       &pb.HealthStatus{Status: pb.HealthStatus_HEALTHY, UptimePercent: proto.Float64(99.95)},
		},
	}
}

// hostile has characters that could rewrite the user's terminal.
func hostile() *api.Record {
	return &api.Record{
		Measured: &api.Measured{State: api.Measured_STATE_UNREACHABLE},
		Service: &pb.ServiceRecord{
			Id: "hostile", ProviderId: stranger,
			Metadata: &pb.ServiceMetadata{Type: "compute"},
			Location: &pb.GeoLocation{Country: "NO", City: "Os\x1b[31mlo\u202e\n"},
			Pricing:  &pb.PricingInfo{BasePrice: proto.Float64(0)},
			Health:   &pb.HealthStatus{Status: pb.HealthStatus_DEGRADED},
		},
	}
}

// bare has no optional values.
func bare() *api.Record {
	return &api.Record{Service: &pb.ServiceRecord{Id: "bare", ProviderId: provider, Metadata: &pb.ServiceMetadata{Type: "compute"}}}
}
