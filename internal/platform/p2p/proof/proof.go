// Package proof lets a peer ask others for a proof that they have the key of their network. The key never leaves a
// peer: the prover returns an HMAC over a challenge (network.Challenge), on a connection that libp2p has authenticated
// and encrypted.
package proof

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/network/v1"
)

const (
	service   = "blackhole.proof" // for the resource manager
	maxSize   = 256               // bytes of a request
	maxAnswer = 8 << 10           // bytes of a proof or a refusal

	maxPeers     = 4096            // remembered peers; the least recently asked is asked again
	answerTime   = 5 * time.Second // of a peer
	denialTime   = 5 * time.Second // until a peer without the key is asked again
	streams      = 128             // questions of others under way
	perPeer      = 4
	questionTime = 10 * time.Second // until an idle stream of another peer ends
)

// Protocol returns the protocol of proofs in a network.
func Protocol(n names.Name) protocol.ID { return protocol.ID(n.Protocol("proof", "1")) }

// Config configures a Prover. Host, Network and Keys are required.
type Config struct {
	Host    host.Host // not closed by the Prover
	Network names.Name
	// Keys returns the present keys of the network: the first one proves, and all are accepted. Empty: this peer has
	// none, and no peer proves anything to it. It must be fast.
	Keys   func() []identity.Key
	Random io.Reader        // nil: crypto/rand
	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: silent
}

// Prover proves this peer's key to others, and asks others for proofs. It is safe for concurrent use.
type Prover struct {
	Config
	server *rpc.Server
	pool   *rpc.Pool
	asking singleflight.Group

	mu    sync.Mutex
	known *lru.LRU[peer.ID, answer] // guarded by mu
}

// answer is the outcome of the last question to a peer, valid for the lifetime of a connection.
type answer struct {
	over network.Conn
	key  identity.Key // nil: the peer proved none
	at   time.Time
}

// New answers the questions of other peers until Close. Error: Invalid.
func New(c Config) (*Prover, error) {
	switch {
	case c.Host == nil:
		return nil, fault.Invalidf("host", nil, "is required")
	case c.Network == "":
		return nil, fault.Invalidf("network", nil, "is required")
	case c.Keys == nil:
		return nil, fault.Invalidf("keys", nil, "is required")
	}
	c.Random = cmp.Or(c.Random, rand.Reader)
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	known := bounded.Map[peer.ID, answer](maxPeers, nil)
	p := &Prover{Config: c, known: known}
	p.pool = rpc.NewPool(rpc.PoolConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service, Format: rpc.Format{MaxSize: maxAnswer}, CallsPerPeer: 1,
	})
	p.server = rpc.NewServer(rpc.ServerConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service, Request: new(pb.ProofRequest), Format: rpc.Format{MaxSize: maxSize}, Handler: p.prove,
		Streams: streams, StreamsPerPeer: perPeer, IdleTimeout: questionTime, FrameTimeout: answerTime, Logger: c.Logger,
	})
	return p, nil
}

// Close answers no more questions and waits for the ones under way.
func (p *Prover) Close() error {
	p.server.Close()
	p.pool.Close()
	return nil
}

// Check returns nil if a connected peer has the key: it proved a present key over a connection that is still open. It
// asks at most once for each connection, unless the key was removed meanwhile.
//
// Errors: Forbidden for a peer without the key; Unavailable for one that is not connected or does not answer; Timeout;
// Canceled.
func (p *Prover) Check(ctx context.Context, id peer.ID) error {
	const op = "proof.Check"
	if err, ok := p.remembered(id); ok {
		return fault.Wrap(op, err)
	}
	asked := p.asking.DoChan(string(id), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime) // the question serves all who wait
		defer cancel()
		return nil, p.ask(ctx, id)
	})
	select {
	case r := <-asked:
		return fault.Wrap(op, r.Err)
	case <-ctx.Done():
		return fault.Wrap(op, ctx.Err())
	}
}

// remembered returns the result of an earlier question, if it still counts.
func (p *Prover) remembered(id peer.ID) (result error, ok bool) {
	p.mu.Lock()
	a, ok := p.known.Get(id)
	p.mu.Unlock()
	switch {
	case !ok || a.over.IsClosed():
		return nil, false
	case a.key != nil:
		return nil, identity.Contains(p.Keys(), a.key)
	default:
		return p.denied(id), p.Now().Sub(a.at) < denialTime
	}
}

func (p *Prover) denied(id peer.ID) error {
	return fault.New("", fault.Forbidden, "peer %s does not prove the key of the network %q", id, p.Network)
}

// ask asks a peer for a proof and remembers the outcome.
func (p *Prover) ask(ctx context.Context, id peer.ID) error {
	keys := p.Keys()
	if len(keys) == 0 {
		return fault.New("", fault.Forbidden, "this peer has no key of the network %q to compare a proof with", p.Network)
	}
	c := identity.Challenge{Network: p.Network, Verifier: p.Host.ID(), Prover: id, Asked: make([]byte, identity.NonceSize)}
	if _, err := io.ReadFull(p.Random, c.Asked); err != nil {
		return fault.As("", fault.Internal, err)
	}
	said := new(pb.ProofResponse)
	// A peer that asks for something is connected. Strangers cannot make this peer dial.
	if err := p.pool.Call(network.WithNoDial(ctx, service), id, &pb.ProofRequest{Nonce: c.Asked}, said); err != nil {
		return err
	}
	if err := rpc.Restore("", said.GetRefusal()); err != nil {
		return err // it lacks something: a later question may fare better, so nothing is remembered
	}
	c.Answered = said.GetNonce()
	a := answer{key: c.Proved(keys, said.GetProof()), at: p.Now()}
	for _, conn := range p.Host.Network().ConnsToPeer(id) {
		if a.over = conn; !conn.IsClosed() {
			break
		}
	}
	if a.over == nil {
		return fault.New("", fault.Unavailable, "peer %s has disconnected", id)
	}
	p.mu.Lock()
	p.known.Add(id, a)
	p.mu.Unlock()
	if a.key == nil {
		p.Logger.Debug("a peer does not prove the key of the network", "peer", id, "network", p.Network.String())
		return p.denied(id)
	}
	return nil
}

// prove answers the question of another peer. A question of a later version gets a refusal that names what is unknown.
func (p *Prover) prove(s *rpc.Stream, req proto.Message, malformed error) (proto.Message, error) {
	if fault.KindOf(malformed) == fault.Unsupported {
		return &pb.ProofResponse{Refusal: rpc.Refuse(malformed)}, nil
	}
	if malformed != nil {
		return nil, malformed
	}
	asked := bytes.Clone(req.(*pb.ProofRequest).GetNonce())
	if len(asked) != identity.NonceSize {
		return nil, fault.New("", fault.Unauthentic, "a nonce of %d bytes, not %d", len(asked), identity.NonceSize)
	}
	keys := p.Keys()
	if len(keys) == 0 {
		return new(pb.ProofResponse), nil
	}
	c := identity.Challenge{
		Network: p.Network, Verifier: s.Remote(), Prover: p.Host.ID(), Asked: asked, Answered: make([]byte, identity.NonceSize),
	}
	if _, err := io.ReadFull(p.Random, c.Answered); err != nil {
		return nil, fault.As("", fault.Internal, err)
	}
	return &pb.ProofResponse{Nonce: c.Answered, Proof: c.Prove(keys[0])}, nil
}
