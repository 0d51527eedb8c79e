package announce

import (
	"context"
	"fmt"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	dsq "github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	recordpb "github.com/libp2p/go-libp2p-record/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/records"
)

const patience = time.Minute

// TestValueFlood: a stranger with one key sends 6,000 valid records of a provider to a DHT node as
// values, and as many valid announcements under foreign keys. The node stores the announcement of
// its own network, and nothing else.
func TestValueFlood(t *testing.T) {
	f := newFounder(t)
	at, err := multiaddr.NewMultiaddr("/ip4/127.0.0.1/tcp/0")
	require.NoError(t, err)
	stored := dssync.MutexWrap(ds.NewMapDatastore())
	node, err := p2p.New(t.Context(), p2p.Config{
		Identity: f.key, Listen: []multiaddr.Multiaddr{at}, Datastore: stored,
		Namespaces: p2p.Namespaces{DHTNamespace(f.network.Name): NewValidator(f.network, time.Now, nil)},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, node.Close()) }()
	stranger, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(t, err)
	defer stranger.Close()
	target, err := peer.AddrInfoFromString(node.Addrs()[0])
	require.NoError(t, err)
	require.NoError(t, stranger.Connect(t.Context(), *target))

	own, said := Key(f.network), f.posted(t, 0, nil)
	for i := range 6000 {
		r := sealed(t, stranger.Peerstore().PrivKey(stranger.ID()), fmt.Sprintf("s%d", i))
		require.False(t, putValue(t, stranger, target.ID, r.Key().String(), r.Envelope()))
		require.False(t, putValue(t, stranger, target.ID, fmt.Sprintf("/%s/%064x", DHTNamespace(f.network.Name), i), said))
	}
	require.True(t, putValue(t, stranger, target.ID, own, said))
	require.False(t, putValue(t, stranger, target.ID, own, sealed(t, f.key, "s").Envelope()))
	found, err := stored.Query(t.Context(), dsq.Query{Prefix: "/dht"})
	require.NoError(t, err)
	entries, err := found.Rest()
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Less(t, len(entries[0].Value), maxMessage)
}

// sealed returns a valid record.
func sealed(t *testing.T, key crypto.PrivKey, id string) *records.Record {
	now := time.Now()
	o := records.Offer{ID: id, Metadata: records.Metadata{Type: "other"}}
	r, err := records.Sign("test", key, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	return r
}

// putValue sends PUT_VALUE and reports whether the node confirmed it. A node resets the stream of a
// refused value.
func putValue(t *testing.T, from host.Host, to peer.ID, key string, value []byte) bool {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := from.NewStream(ctx, to, "/blackhole/dev/kad/1.0.0")
	require.NoError(t, err)
	defer func() { _ = s.Reset() }()
	put := dhtpb.NewMessage(dhtpb.Message_PUT_VALUE, []byte(key), 0)
	put.Record = &recordpb.Record{Key: []byte(key), Value: value}
	_, err = protodelim.MarshalTo(s, put)
	require.NoError(t, err)
	require.NoError(t, s.SetReadDeadline(time.Now().Add(patience)))
	n, err := s.Read(make([]byte, 1))
	return n > 0 && err == nil
}
