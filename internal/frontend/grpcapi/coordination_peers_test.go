package grpcapi_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestWhatPeersMaySend is the table call x peer of the protocol of calls: a stranger, a client whose word on its callers does not
// count ("open"), and a trusted client. A member has no more rights here than a trusted client.
func TestWhatPeersMaySend(t *testing.T) {
	open := &coordv1.Command{Request: &coordv1.Command_OpenClient{OpenClient: &api.OpenClientRequest{}}}
	ownedBy := func(owner string) func(string) *coordv1.Command {
		return func(me string) *coordv1.Command {
			if strings.HasSuffix(owner, "~") {
				return &coordv1.Command{Owner: owner + me, Request: open.Request}
			}
			return &coordv1.Command{Owner: owner, Request: open.Request}
		}
	}
	group := func(m *coordv1.Command) func(string) *coordv1.Command {
		return func(string) *coordv1.Command { return m }
	}
	for name, row := range map[string]struct {
		command func(me string) *coordv1.Command
		may     string // stranger, open, trusted: of "sot"
	}{
		"for itself":                          {ownedBy(""), "ot"},
		"for its callers without a name":      {ownedBy("~"), "ot"},
		"for those of a front":                {ownedBy("&etcd~"), "ot"},
		"for an authenticated caller":         {ownedBy("@web"), "t"},
		"for another peer":                    {ownedBy("peer-9"), ""},
		"for another peer's callers":          {ownedBy("~peer-9"), ""},
		"for those of another peer's front":   {ownedBy("&etcd~peer-9"), ""},
		"for a caller with an empty name":     {ownedBy("@"), ""},
		"for everybody":                       {ownedBy("*"), ""},
		"the expiry of leases":                {group(&coordv1.Command{Request: &coordv1.Command_Expire{Expire: &coordv1.Expire{}}}), ""},
		"the expiry of clients":               {group(&coordv1.Command{Request: &coordv1.Command_ClientsExpire{ClientsExpire: &coordv1.ClientsExpire{}}}), ""},
		"the withdrawal of a claim":           {group(&coordv1.Command{Request: &coordv1.Command_Cancel{Cancel: &coordv1.Cancel{}}}), ""},
		"a compaction":                        {group(&coordv1.Command{Request: &coordv1.Command_Compact{Compact: &coordv1.Compact{Revision: 1}}}), ""},
		"limits":                              {group(&coordv1.Command{Request: &coordv1.Command_Configure{Configure: &coordv1.Configure{}}}), ""},
		"a feature level":                     {group(&coordv1.Command{Request: &coordv1.Command_SetLevel{SetLevel: &coordv1.SetLevel{Level: 2}}}), ""},
		"the addresses of members":            {group(&coordv1.Command{Request: &coordv1.Command_SetAddresses{SetAddresses: &coordv1.SetAddresses{}}}), ""},
		"a new incarnation":                   {group(&coordv1.Command{Request: &coordv1.Command_BumpIncarnation{BumpIncarnation: &coordv1.BumpIncarnation{}}}), ""},
		"the end of the group":                {group(&coordv1.Command{Request: &coordv1.Command_Dissolve{Dissolve: &coordv1.Dissolve{}}}), ""},
		"an entry of its own":                 {published(""), "t"},
		"an entry of an authenticated caller": {published("@web"), "t"},
		"a backup":                            {nil, "t"},
	} {
		for kind, peer := range map[byte]string{'s': "mallory", 'o': "open-1", 't': "peer-1"} {
			t.Run(name+" by "+peer, func(t *testing.T) {
				r := newRaw(t, peer, func(c *grpcapi.Config) {
					c.Coordination.Peers, c.Coordination.Authenticated = true, true
					c.Coordination.Vouches = func(ctx context.Context) error {
						if md, _ := metadata.FromIncomingContext(ctx); md.Get("owner")[0] == "open-1" {
							return fault.New("test", fault.Forbidden, "no key")
						}
						return nil
					}
				})
				may := func(err error) {
					t.Helper()
					if strings.IndexByte(row.may, kind) >= 0 {
						require.NoError(t, err)
						return
					}
					require.Contains(t, []codes.Code{codes.PermissionDenied, codes.InvalidArgument}, status.Code(err), "%v", err)
				}
				if row.command == nil {
					s, err := r.Backup(t.Context(), &api.BackupRequest{})
					for err == nil {
						_, err = s.Recv()
					}
					if err == io.EOF {
						err = nil
					}
					may(err)
					return
				}
				s, err := r.Calls(t.Context())
				require.NoError(t, err)
				m := row.command(peer)
				if p := m.GetPublishInstances(); p != nil && kind != 's' {
					p.LeaseId = r.lease(t)
				}
				_ = s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{command(1, m)}}) // Recv says why it fails
				resp, err := s.Recv()
				if err == nil {
					err = status.Error(codeOf(t, resp.GetReplies()[0]), "")
				}
				may(err)
			})
		}
	}
}

// published publishes an instance that a principal registered.
func published(principal string) func(string) *coordv1.Command {
	i := instance.Instance{Key: instance.Key{Namespace: "default", Service: "web", ID: "a"}, Spec: instance.Spec{Host: "10.0.0.1", Port: 80}}
	return func(string) *coordv1.Command {
		return &coordv1.Command{Request: &coordv1.Command_PublishInstances{PublishInstances: &api.PublishInstancesRequest{
			Generation: 1, Puts: []*api.DirectoryEntry{{Key: []byte(directory.Key("default", "web", "a")), Value: i.Marshal(), Adopt: true, Principal: principal}},
		}}}
	}
}
