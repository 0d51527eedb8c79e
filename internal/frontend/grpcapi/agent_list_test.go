package grpcapi_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

func TestRegisterTellsWhatIsNew(t *testing.T) {
	c, _, _ := agents(t)
	for _, created := range []bool{true, false} {
		resp, err := c.Register(t.Context(), &agentv1.RegisterRequest{Instance: web("a")})
		require.NoError(t, err)
		require.Equal(t, created, resp.GetCreated())
	}
}

// TestLeasesAreForTheirOwner: the answer to a registration alone names the lease, which is a credential. No answer names the
// caller who registered.
func TestLeasesAreForTheirOwner(t *testing.T) {
	c, _, _ := agents(t)
	done, err := c.Register(t.Context(), &agentv1.RegisterRequest{Instance: web("a")})
	require.NoError(t, err)
	require.NotEmpty(t, done.GetLeaseId())
	found, err := c.Discover(t.Context(), &agentv1.DiscoverRequest{ServiceName: "web"})
	require.NoError(t, err)
	listed, err := c.ListInstances(t.Context(), &agentv1.ListInstancesRequest{})
	require.NoError(t, err)
	set, err := c.SetStatus(t.Context(), &agentv1.SetStatusRequest{ServiceName: "web", InstanceId: "a", Status: agentv1.HealthStatus_HEALTH_STATUS_UP})
	require.NoError(t, err)
	watch, err := c.Watch(t.Context(), &agentv1.WatchRequest{Query: &agentv1.DiscoverRequest{ServiceName: "web"}})
	require.NoError(t, err)
	first, err := watch.Recv()
	require.NoError(t, err)
	shown := append(append(found.GetInstances(), listed.GetInstances()...), set.GetInstance(), first.GetInstance())
	require.Len(t, shown, 4)
	for _, i := range shown {
		require.Equal(t, "a", i.GetId())
		require.Empty(t, i.GetLeaseId())
		require.Empty(t, i.GetPrincipal())
	}
}

// TestPages: each lasting instance is in exactly one page, despite changes between pages.
func TestPages(t *testing.T) {
	c, a, _ := agents(t)
	add := func(service, id string) instance.Key {
		r := agenttest.Web(id)
		r.Service = service
		done, err := a.Register(t.Context(), r)
		require.NoError(t, err)
		return done.Key
	}
	var stay []string
	for n := range 90 {
		k := add([]string{"db", "db-old", "web"}[n%3], fmt.Sprintf("i%02d", n/3))
		stay = append(stay, k.Service+"/"+k.ID)
	}
	for _, size := range []uint32{1, 7, 90, 91, 1000} {
		seen := map[string]int{}
		for n, token := 0, ""; ; n++ {
			passing := add("db-old", fmt.Sprintf("i%02d-%d", n%30, n))
			resp, err := c.ListInstances(t.Context(), &agentv1.ListInstancesRequest{PageSize: size, PageToken: token})
			require.NoError(t, err)
			require.Equal(t, uint32(len(stay)+1), resp.GetTotal())
			require.NotZero(t, resp.GetRevision())
			for _, i := range resp.GetInstances() {
				seen[i.GetServiceName()+"/"+i.GetId()]++
			}
			_, err = a.Deregister(t.Context(), passing)
			require.NoError(t, err)
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
			require.Len(t, resp.GetInstances(), int(size))
		}
		for name, times := range seen {
			require.Equal(t, 1, times, "%s in pages of %d", name, size)
		}
		for _, name := range stay {
			require.Contains(t, seen, name, "pages of %d", size)
		}
	}
}

func TestPagesByDefault(t *testing.T) {
	c, a, _ := agents(t)
	for n := range 101 {
		_, err := a.Register(t.Context(), agenttest.Web(fmt.Sprintf("%03d", n)))
		require.NoError(t, err)
	}
	resp, err := c.ListInstances(t.Context(), &agentv1.ListInstancesRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetInstances(), 100)
	resp, err = c.ListInstances(t.Context(), &agentv1.ListInstancesRequest{PageToken: resp.GetNextPageToken()})
	require.NoError(t, err)
	require.Len(t, resp.GetInstances(), 1)
	require.NotNil(t, resp.GetInstances()[0].GetLastHeartbeat())
	require.Empty(t, resp.GetNextPageToken())

	a.Lose("cut off")
	resp, err = c.ListInstances(t.Context(), &agentv1.ListInstancesRequest{Query: &agentv1.DiscoverRequest{Namespace: "other"}})
	require.NoError(t, err)
	require.Empty(t, resp.GetInstances())
	require.True(t, resp.GetStale())
	require.Equal(t, "cut off", resp.GetReason())
	require.NotNil(t, resp.GetAge())
}

func TestPagesRefused(t *testing.T) {
	c, _, _ := agents(t)
	for field, req := range map[string]*agentv1.ListInstancesRequest{
		"page_size":          {PageSize: 1001},
		"page_token":         {PageToken: "!"},
		"page_token ":        {PageToken: base64.RawURLEncoding.EncodeToString([]byte("web"))},
		"page_token  ":       {PageToken: strings.Repeat("A", 1000)},
		"query.service_name": {Query: &agentv1.DiscoverRequest{ServiceName: "web"}},
		"query.prefer_zone":  {Query: &agentv1.DiscoverRequest{PreferZone: "eu"}},
		"query.status":       {Query: &agentv1.DiscoverRequest{Health: []agentv1.HealthStatus{99}}},
		"version":            {Query: &agentv1.DiscoverRequest{Version: "?"}},
	} {
		_, err := c.ListInstances(t.Context(), req)
		refused(t, err, codes.InvalidArgument, strings.TrimSpace(field))
	}
}
