package daemon

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/platform/config"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// TestLeasesOfOthersAreNotRenewed is the table caller x way to renew x instance. The id of a lease gives no right: nobody keeps
// a dead instance of another caller up.
func TestLeasesOfOthersAreNotRenewed(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole peer on loopback")
	}
	c := config.Default()
	for name, services := range map[string][]string{"web": {"web"}, "pay": {"pay"}, "both": {"web", "pay"}} {
		c.Auth.Tokens = append(c.Auth.Tokens, config.Token{Token: func() string { return "of-" + name }, Name: name, Role: "service", Services: services})
	}
	c.Auth.Tokens = append(c.Auth.Tokens, config.Token{Token: func() string { return "of-ops" }, Name: "ops", Role: "admin"})
	p := startWith(t, c, t.TempDir())
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	agent := agentv1.NewDiscoveryServiceClient(conn)
	as := func(name string) metadata.MD { return metadata.Pairs("authorization", "Bearer of-"+name) }
	of := func(service string) *agentv1.Instance {
		return &agentv1.Instance{ServiceName: service, Id: service + "-1", Host: "10.0.0.1", Port: 80}
	}
	leases := map[string]string{}
	for _, service := range []string{"web", "pay"} {
		done, err := agent.Register(metadata.NewOutgoingContext(t.Context(), as(service)), &agentv1.RegisterRequest{Instance: of(service)})
		require.NoError(t, err)
		leases[service] = done.GetLeaseId()
		require.Equal(t, done.GetLeaseId(), done.GetInstance().GetLeaseId(), "the answer to a registration alone has it")
	}

	ways := map[string]func(name, service string) bool{ // whether it renewed
		"PUT /v1/leases/ID/renew": func(name, service string) bool {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.http+"/v1/leases/"+leases[service]+"/renew", nil)
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer of-"+name)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Contains(t, []int{http.StatusOK, http.StatusForbidden}, resp.StatusCode)
			return resp.StatusCode == http.StatusOK
		},
		"Heartbeat lease_id": func(name, service string) bool {
			_, err := agent.Heartbeat(metadata.NewOutgoingContext(t.Context(), as(name)), &agentv1.HeartbeatRequest{LeaseId: leases[service]})
			require.Contains(t, []codes.Code{codes.OK, codes.PermissionDenied}, status.Code(err))
			return err == nil
		},
		"Heartbeat lease_ids": func(name, service string) bool {
			beats, err := agent.Heartbeat(metadata.NewOutgoingContext(t.Context(), as(name)), &agentv1.HeartbeatRequest{LeaseIds: []string{"lease-nobody", leases[service]}})
			require.NoError(t, err)
			require.Zero(t, beats.GetBeats()[0].GetTtlMs())
			return beats.GetBeats()[1].GetTtlMs() > 0
		},
		"RegisterStream": func(name, service string) bool {
			stream, err := agent.RegisterStream(metadata.NewOutgoingContext(t.Context(), as(name)))
			require.NoError(t, err)
			var last *agentv1.Event
			for range 2 { // the second one renews
				require.NoError(t, stream.Send(of(service)))
				last, err = stream.Recv()
				require.NoError(t, err)
			}
			require.NoError(t, stream.CloseSend())
			return last.GetError() == ""
		},
	}
	for way, renew := range ways {
		for name, may := range map[string][]string{"web": {"web"}, "pay": {"pay"}, "both": {"web", "pay"}, "ops": {"web", "pay"}} {
			for _, service := range []string{"web", "pay"} {
				require.Equal(t, slices.Contains(may, service), renew(name, service), "%s by %s of %s", way, name, service)
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.http+"/v1/leases/"+leases["pay"]+"/renew", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "without a name")
}
