package announce

import (
	crand "crypto/rand"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// founder is a peer with a group of its own.
type founder struct {
	key     crypto.PrivKey
	id      peer.ID
	network bootstrap.Network
	info    *groupv1.GroupInfo
}

func newFounder(t testing.TB) *founder {
	key, _, err := crypto.GenerateEd25519Key(crand.Reader)
	require.NoError(t, err)
	f := &founder{key: key}
	f.id, err = peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	f.network = bootstrap.Network{Name: "dev", Founders: []peer.ID{f.id}}
	m := f.network.Membership()
	id := m.GroupID()
	f.info = &groupv1.GroupInfo{GroupId: id[:], Membership: m.Encode(), Term: 7, Leader: 1}
	return f
}
