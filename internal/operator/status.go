package operator

import (
	"cmp"
	"context"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Status returns the state of the peer.
func (c *Client) Status(ctx context.Context) (discovery.Status, error) {
	resp, err := api.NewPeerServiceClient(c.link.Conn).Status(ctx, &api.StatusRequest{})
	if err != nil {
		return discovery.Status{}, calls.Fault("operator.Status", err)
	}
	var conditions []discovery.Condition
	for _, c := range resp.GetConditions() {
		conditions = append(conditions, discovery.Condition{
			Name: c.GetName(), Message: c.GetMessage(),
			Problem: fault.Problem{
				What: cmp.Or(c.GetWhat(), c.GetMessage()), Effect: c.GetEffect(), Remedy: c.GetRemedy(), // an older peer has the message alone
				State: cmp.Or(fault.State(c.GetState()), fault.Now), Since: c.GetSince().AsTime(),
			},
		})
	}
	return discovery.Status{
		PeerID: resp.GetPeerId(), IdentityNew: resp.GetIdentityNew(), Network: resp.GetNetwork(),
		NetworkClosed: resp.GetNetworkClosed(), Profile: resp.GetProfile(), Mode: resp.GetMode(), Listen: resp.GetListen(),
		Version:       resp.GetVersion(),
		UptimeSeconds: resp.GetUptime().AsDuration().Seconds(), Ready: resp.GetReady(),
		Peers: int(resp.GetPeers()), RoutingTable: int(resp.GetRoutingTable()),
		RecordsKept: int(resp.GetRecordsKept()), RecordsOwn: int(resp.GetRecordsOwn()),
		RecordsUnstored: resp.GetRecordsUnstored(), RecordsAnnouncing: int(resp.GetRecordsAnnouncing()),
		Conditions: conditions, ClockOffset: resp.ClockOffsetSeconds,
		Reach: reachOf(resp.GetReach()), Name: resp.GetName(), Group: standingOf(resp.GetGroup()),
	}, nil
}

func standingOf(g *api.GroupStanding) *discovery.Group {
	if g == nil {
		return nil
	}
	return &discovery.Group{
		ID: g.GetGroupId(), Role: g.GetRole(), Term: g.GetTerm(), Leader: g.GetLeader(), LeaderName: g.GetLeaderName(),
		Survives: int(g.GetFailuresSurvived()), Tolerance: g.GetTolerance(), Missing: g.GetMissing(),
	}
}

func reachOf(r *api.Reach) discovery.Reach {
	return discovery.Reach{
		State: r.GetState(), Text: r.GetText(), Since: r.GetSince().AsTime(), Relays: r.GetRelays(),
		Direct: int(r.GetDirect()), Relayed: int(r.GetRelayed()), Punched: int(r.GetPunched()), Unpunched: int(r.GetUnpunched()),
	}
}

// Peers returns the connected peers of the peer.
func (c *Client) Peers(ctx context.Context) ([]discovery.PeerInfo, error) {
	resp, err := api.NewPeerServiceClient(c.link.Conn).ListPeers(ctx, &api.ListPeersRequest{})
	if err != nil {
		return nil, calls.Fault("operator.Peers", err)
	}
	out := make([]discovery.PeerInfo, len(resp.GetPeers()))
	for i, p := range resp.GetPeers() {
		out[i] = discovery.PeerInfo{
			ID: p.GetId(), Addrs: p.GetAddrs(), Agent: p.GetAgent(), LatencyMs: queries.Millis(p.GetLatency().AsDuration()), Name: p.GetName(),
		}
	}
	return out, nil
}

// Page returns a link to the web page of the peer, on which the page acts for the caller.
func (c *Client) Page(ctx context.Context) (discovery.PageLink, error) {
	resp, err := api.NewPeerServiceClient(c.link.Conn).OpenPage(ctx, &api.OpenPageRequest{})
	if err != nil {
		return discovery.PageLink{}, calls.Fault("operator.Page", err)
	}
	link := discovery.PageLink{URL: resp.GetUrl()}
	if at := resp.GetExpiresAt(); at != nil {
		link.Expires = at.AsTime()
	}
	return link, nil
}
