package proof

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/network/v1"
)

// party is a peer with a Prover.
type party struct {
	*Prover
	host host.Host
	keys atomic.Pointer[[]identity.Key]
	now  atomic.Int64 // seconds
	told atomic.Int64 // proofs given
}

func (p *party) set(keys ...identity.Key) { p.keys.Store(&keys) }

// Read counts the nonces of this peer.
func (p *party) Read(b []byte) (int, error) { p.told.Add(1); return rand.Read(b) }

func newHost(t *testing.T) host.Host {
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func newParty(t *testing.T, n names.Name, keys ...identity.Key) *party {
	p := &party{host: newHost(t)}
	p.set(keys...)
	var err error
	p.Prover, err = New(Config{
		Host: p.host, Network: n, Keys: func() []identity.Key { return *p.keys.Load() }, Random: p,
		Now: func() time.Time { return time.Unix(p.now.Load(), 0) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func newKey(t *testing.T) identity.Key {
	k, err := identity.NewKey(rand.Reader)
	require.NoError(t, err)
	return k
}

func connect(t *testing.T, a, b host.Host) {
	require.NoError(t, a.Connect(t.Context(), peer.AddrInfo{ID: b.ID(), Addrs: b.Addrs()}))
}

func TestProof(t *testing.T) {
	k := newKey(t)
	a, b := newParty(t, "n", k), newParty(t, "n", k)
	require.ErrorIs(t, a.Check(t.Context(), b.host.ID()), fault.Unavailable, "it does not dial")
	connect(t, a.host, b.host)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() { require.NoError(t, a.Check(t.Context(), b.host.ID())) })
	}
	all.Wait()
	require.NoError(t, a.Check(t.Context(), b.host.ID()))
	require.EqualValues(t, 1, b.told.Load(), "one proof for the connection")
	require.NoError(t, b.Check(t.Context(), a.host.ID()), "both ways")

	require.NoError(t, a.host.Network().ClosePeer(b.host.ID()))
	connect(t, a.host, b.host)
	require.NoError(t, a.Check(t.Context(), b.host.ID()))
	require.EqualValues(t, 3, b.told.Load(), "a new connection, a new proof, and one question of its own")
}

func TestNoProof(t *testing.T) {
	k := newKey(t)
	a := newParty(t, "n", k)
	for name, b := range map[string]*party{"other key": newParty(t, "n", newKey(t)), "no key": newParty(t, "n")} {
		connect(t, a.host, b.host)
		err := a.Check(t.Context(), b.host.ID())
		require.ErrorIs(t, err, fault.Forbidden, name)
		require.ErrorContains(t, err, `does not prove the key of the network "n"`)
		told := b.told.Load()
		b.set(k)
		require.ErrorIs(t, a.Check(t.Context(), b.host.ID()), fault.Forbidden, "remembered")
		require.Equal(t, told, b.told.Load())
		a.now.Add(int64(denialTime / time.Second))
		require.NoError(t, a.Check(t.Context(), b.host.ID()), "asked again")
	}
	keyless, b := newParty(t, "n"), newParty(t, "n", k)
	connect(t, keyless.host, b.host)
	require.ErrorIs(t, keyless.Check(t.Context(), b.host.ID()), fault.Forbidden)
	foreign := newParty(t, "m", k)
	connect(t, a.host, foreign.host)
	require.ErrorIs(t, a.Check(t.Context(), foreign.host.ID()), fault.Unavailable, "the key of another network")
}

// TestRotation: a new key is first accepted everywhere, then proved, and the old one goes last. A peer with only the
// old key loses its right at once.
func TestRotation(t *testing.T) {
	old, fresh := newKey(t), newKey(t)
	a, b := newParty(t, "n", old), newParty(t, "n", old)
	connect(t, a.host, b.host)
	both := func() {
		t.Helper()
		require.NoError(t, a.Check(t.Context(), b.host.ID()))
		require.NoError(t, b.Check(t.Context(), a.host.ID()))
	}
	both()
	a.set(old, fresh)
	both()
	b.set(old, fresh)
	both()
	a.set(fresh, old)
	both()
	b.set(fresh, old)
	both()
	a.set(fresh)
	both()
	b.set(fresh)
	both()
	b.set(old)
	require.NoError(t, a.Check(t.Context(), b.host.ID()), "proved before, by a key that still counts")
	a.set(newKey(t))
	require.ErrorIs(t, a.Check(t.Context(), b.host.ID()), fault.Forbidden, "its key was removed")
}

// TestForgedProofs: answers of a program that has recorded the proofs of others.
func TestForgedProofs(t *testing.T) {
	k := newKey(t)
	a, thief := newParty(t, "n", k), newHost(t)
	var said atomic.Pointer[pb.ProofResponse]
	said.Store(new(pb.ProofResponse))
	thief.SetStreamHandler(Protocol("n"), func(s network.Stream) {
		defer s.Close()
		codec := rpc.NewCodec(s, &network.NullScope{}, rpc.Format{MaxSize: maxSize})
		if codec.ReadMessage(new(pb.ProofRequest)) == nil {
			_ = codec.WriteMessage(said.Load())
		}
	})
	connect(t, a.host, thief)
	honest := identity.Challenge{Network: "n", Verifier: a.host.ID(), Prover: newHost(t).ID(), Asked: make([]byte, 32), Answered: make([]byte, 32)}
	for _, answer := range []*pb.ProofResponse{
		{}, {Nonce: make([]byte, 32)}, {Nonce: honest.Answered, Proof: honest.Prove(k)}, {Proof: honest.Prove(k)[:16]},
		{Nonce: make([]byte, 31), Proof: make([]byte, 32)},
	} {
		said.Store(answer)
		require.ErrorIs(t, a.Check(t.Context(), thief.ID()), fault.Forbidden)
		a.now.Add(int64(denialTime / time.Second))
	}
	s, err := thief.NewStream(t.Context(), a.host.ID(), Protocol("n"))
	require.NoError(t, err)
	codec := rpc.NewCodec(s, &network.NullScope{}, rpc.Format{MaxSize: maxSize})
	require.NoError(t, codec.WriteMessage(&pb.ProofRequest{Nonce: []byte("short")}))
	require.Error(t, codec.ReadMessage(new(pb.ProofResponse)), "no proof without a nonce")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.Check(ctx, thief.ID()), fault.Canceled)
}

func TestConfigNamesWhatIsMissing(t *testing.T) {
	whole := Config{Host: newHost(t), Network: "n", Keys: func() []identity.Key { return nil }}
	for field, edit := range map[string]func(*Config){
		"host": func(c *Config) { c.Host = nil }, "network": func(c *Config) { c.Network = "" }, "keys": func(c *Config) { c.Keys = nil },
	} {
		c := whole
		edit(&c)
		_, err := New(c)
		require.Equal(t, field, fault.FieldOf(err))
	}
}

// A question of a later version gets a refusal that names what is unknown, and no proof. Nobody is denied for it.
func TestLaterQuestion(t *testing.T) {
	k := newKey(t)
	a, b := newParty(t, "n", k), newParty(t, "n", k)
	connect(t, a.host, b.host)
	pool := rpc.NewPool(rpc.PoolConfig{
		Host: a.host, Protocol: Protocol("n"), Service: "later", Format: rpc.Format{MaxSize: maxAnswer}, CallsPerPeer: 1,
	})
	defer pool.Close()
	req, said := &pb.ProofRequest{Nonce: make([]byte, identity.NonceSize)}, new(pb.ProofResponse)
	req.ProtoReflect().SetUnknown([]byte{9 << 3, 1})
	require.NoError(t, pool.Call(t.Context(), b.host.ID(), req, said))
	require.Empty(t, said.GetProof())
	require.Equal(t, []string{"9"}, said.GetRefusal().GetUnknown())
	require.ErrorIs(t, rpc.Restore("", said.GetRefusal()), fault.Unsupported)
	require.NoError(t, a.Check(t.Context(), b.host.ID()))
}
