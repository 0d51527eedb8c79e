package announce

import (
	"context"
	crand "crypto/rand"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

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

func (f *founder) message(t *testing.T, sequence uint64, info *groupv1.GroupInfo) *pubsub.Message {
	b, err := sign(f.key, f.network, sequence, info)
	require.NoError(t, err)
	return &pubsub.Message{Message: &pb.Message{Data: b}}
}

// signedBy returns an announcement of another peer in the founder's network.
func (f *founder) signedBy(t *testing.T, by *founder, sequence uint64) *pubsub.Message {
	b, err := sign(by.key, f.network, sequence, f.info)
	require.NoError(t, err)
	return &pubsub.Message{Message: &pb.Message{Data: b}}
}

func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stranger := newFounder(t), newFounder(t)
		at := func(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixMilli()) }
		fresh := func() *validator { return newValidator(f.network, time.Now) }
		good := f.message(t, at(0), f.info)
		said, result := fresh().validate(good)
		require.Equal(t, pubsub.ValidationAccept, result)
		require.Equal(t, f.id, said.from)
		require.True(t, proto.Equal(f.info, said.info))

		spoilt := func(change func(*groupv1.Announcement)) *pubsub.Message {
			a := new(groupv1.Announcement)
			require.NoError(t, proto.Unmarshal(good.GetData(), a))
			change(a)
			b, err := proto.Marshal(a)
			require.NoError(t, err)
			return &pubsub.Message{Message: &pb.Message{Data: b}}
		}
		other := proto.CloneOf(f.info)
		other.GroupId = stranger.info.GetGroupId()
		bare := proto.CloneOf(f.info)
		bare.Membership = nil
		foreign := proto.CloneOf(stranger.info)
		for name, c := range map[string]struct {
			message *pubsub.Message
			want    pubsub.ValidationResult
		}{
			"noise":                {&pubsub.Message{Message: &pb.Message{Data: []byte{1, 2, 3}}}, pubsub.ValidationReject},
			"nothing":              {&pubsub.Message{Message: &pb.Message{}}, pubsub.ValidationReject},
			"too large":            {&pubsub.Message{Message: &pb.Message{Data: make([]byte, maxMessage+1)}}, pubsub.ValidationReject},
			"ballast":              {&pubsub.Message{Message: &pb.Message{Data: append([]byte{0xf8, 1, 1}, good.GetData()...)}}, pubsub.ValidationReject},
			"a later sequence":     {spoilt(func(a *groupv1.Announcement) { a.Sequence++ }), pubsub.ValidationReject},
			"another peer":         {spoilt(func(a *groupv1.Announcement) { a.Peer = []byte(stranger.id) }), pubsub.ValidationReject},
			"no peer":              {spoilt(func(a *groupv1.Announcement) { a.Peer = nil }), pubsub.ValidationReject},
			"no signature":         {spoilt(func(a *groupv1.Announcement) { a.Signature = nil }), pubsub.ValidationReject},
			"who may be no member": {stranger.message(t, at(0), f.info), pubsub.ValidationReject},
			"no founder":           {f.signedBy(t, stranger, at(0)), pubsub.ValidationIgnore},
			"no membership":        {f.message(t, at(0), bare), pubsub.ValidationReject},
			"other founders":       {f.message(t, at(0), foreign), pubsub.ValidationAccept},
			"another group":        {f.message(t, at(0), other), pubsub.ValidationReject},
			"old":                  {f.message(t, at(-window-time.Second), f.info), pubsub.ValidationIgnore},
			"of the future":        {f.message(t, at(window+time.Second), f.info), pubsub.ValidationIgnore},
		} {
			_, result := fresh().validate(c.message)
			require.Equal(t, c.want, result, name)
		}
	})
}

// No announcement is forwarded twice, nor above the rate; after a pause its signer may send again.
func TestJudgeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounder(t)
		j := newValidator(f.network, time.Now)
		now := uint64(time.Now().UnixMilli())
		passed := 0
		for i := range uint64(3 * burst) {
			m := f.message(t, now+i, f.info)
			if _, result := j.validate(m); result == pubsub.ValidationAccept {
				passed++
			}
			_, result := j.validate(m)
			require.Equal(t, pubsub.ValidationIgnore, result, "twice")
		}
		require.Equal(t, burst, passed)
		time.Sleep(5 * time.Second)
		_, result := j.validate(f.message(t, now+1000, f.info))
		require.Equal(t, pubsub.ValidationAccept, result)
		_, result = j.validate(f.message(t, now+999, f.info))
		require.Equal(t, pubsub.ValidationIgnore, result, "an older one")
	})
}

func TestTopic(t *testing.T) {
	n := bootstrap.Network{Name: "a"}
	topic := Topic(n)
	require.Equal(t, "/blackhole/a/group/1/"+n.ID().String(), topic)
	require.True(t, IsTopic("a", topic))
	require.False(t, IsTopic("b", topic))
	prefix := topics("a")
	for _, no := range []string{"", prefix, topic + "0", topic[1:], "/blackhole/a/live/1/a/global", prefix + "AB" + topic[len(prefix)+2:]} {
		require.False(t, IsTopic("a", no), no)
	}
}

// TestAnnouncer: connected peers receive the leader's announcement once, the leader itself never.
func TestAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounder(t)
		net := mocknet.New()
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan peer.ID, 10)
		var heralds []*Announcer
		for i := range 3 {
			key := f.key
			if i > 0 {
				key, _, _ = crypto.GenerateEd25519Key(crand.Reader)
			}
			addr, err := multiaddr.NewMultiaddr("/ip4/10.0.0.1/tcp/400" + string(rune('0'+i)))
			require.NoError(t, err)
			host, err := net.AddPeer(key, addr)
			require.NoError(t, err)
			ps, err := pubsub.NewGossipSub(ctx, host, pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign), pubsub.WithNoAuthor(),
				pubsub.WithMessageIdFn(func(m *pb.Message) string { return string(m.GetData()) }))
			require.NoError(t, err)
			h, err := New(Config{
				PubSub: ps, Network: f.network, Key: key, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Received: func(from peer.ID, info *groupv1.GroupInfo) {
					require.EqualValues(t, 7, info.GetTerm())
					heard <- from
				},
			})
			require.NoError(t, err)
			heralds = append(heralds, h)
		}
		require.NoError(t, net.LinkAll())
		require.NoError(t, net.ConnectAllButSelf())
		time.Sleep(3 * time.Second)
		require.NoError(t, heralds[0].Announce(ctx, f.info))
		require.Error(t, heralds[1].Announce(ctx, f.info), "who may not lead is not even heard by itself")
		time.Sleep(3 * time.Second)
		require.Len(t, heard, 2)
		require.Equal(t, f.id, <-heard)
		for _, h := range heralds {
			require.NoError(t, h.Close())
		}
		again, err := New(heralds[0].Config)
		require.NoError(t, err, "the topic is free again")
		require.NoError(t, again.Close())
		cancel()
		require.NoError(t, net.Close())
		time.Sleep(time.Minute)
	})
}
