package flood

import (
	"bufio"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	manet "github.com/multiformats/go-multiaddr/net"
	"google.golang.org/protobuf/proto"

	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	handshakesOfOne = 10 // connections until a new identity
	silentAtOnce    = 32 // connections and streams that each host keeps open without a word
	information     = 2  // topic of questions about the group
)

// held are the last connections or streams that a host keeps open.
type held []interface{ Close() error }

// keep adds one, and closes the oldest above the bound.
func (k *held) keep(c interface{ Close() error }) {
	*k = append(*k, c)
	if len(*k) > silentAtOnce {
		_ = (*k)[0].Close()
		*k = slices.Delete(*k, 0, 1)
	}
}

func (k *held) close() {
	for _, c := range *k {
		_ = c.Close()
	}
}

// greet sends questions and garbage on the protocols of the group, and keeps silent streams.
func greet(ctx context.Context, h *hostile) {
	for h.await(ctx) {
		var silent held
		for i := 0; h.host.Network().Connectedness(h.target.ID) == network.Connected; i++ {
			if !h.pace.turn(ctx, 1) {
				break
			}
			id := h.ofGroup(i)
			stream, err := h.open(ctx, id)
			if err != nil {
				h.tally.send(1, "stream: "+short(err))
				continue
			}
			switch i % 3 {
			case 0:
				h.tally.send(1, h.question(stream))
			case 1:
				h.tally.send(1, h.garbage(stream))
			default:
				silent.keep(stream)
				h.tally.send(1, "")
			}
		}
		silent.close()
		if await.Pause(ctx, comesBack) != nil {
			return
		}
	}
}

// ofGroup returns the i-th protocol of the group that the victim says it speaks. Questions have one of their own.
func (h *hostile) ofGroup(i int) protocol.ID {
	all := []protocol.ID{protocol.ID(h.order.Network.Protocol("group", "1"))}
	if i%3 == 0 {
		return all[0]
	}
	spoken, _ := h.host.Peerstore().GetProtocols(h.target.ID) // empty before identify
	for _, id := range spoken {
		for _, part := range []string{"coord", "raft", "proof"} {
			if strings.HasPrefix(string(id), h.order.Network.Prefix()+"/"+part+"/") {
				all = append(all, id)
			}
		}
	}
	return all[rand.IntN(len(all))]
}

// question asks about the group, as a peer does that introduces itself.
func (h *hostile) question(s network.Stream) string {
	defer func() { _ = s.Reset() }()
	inner, err := proto.Marshal(&groupv1.InfoRequest{Candidate: rand.Uint64(), Name: "mallory"})
	if err != nil {
		return "internal"
	}
	resp := &groupv1.AskResponse{}
	c := &conversation{s, bufio.NewReader(s)}
	if err := c.ask(&groupv1.AskRequest{Topic: information, Question: inner}, resp); err != nil {
		return "question: " + short(err)
	}
	return reason(resp.Refusal)
}

// garbage sends random bytes, and expects the end of the stream.
func (h *hostile) garbage(s network.Stream) string {
	defer func() { _ = s.Reset() }()
	if err := s.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return "garbage: " + short(err)
	}
	if _, err := s.Write(random(1024)); err != nil {
		return "garbage: " + short(err)
	}
	_ = s.CloseWrite() // then the victim has all of it
	buf := make([]byte, 1024)
	for {
		if _, err := s.Read(buf); err != nil {
			return "garbage: " + short(err)
		}
	}
}

// connect makes connections: with a handshake, and without one.
func connect(ctx context.Context, h *hostile) {
	var silent held
	defer func() { silent.close() }()
	for i := 0; h.pace.turn(ctx, 1); i++ {
		if i%2 == 1 {
			conn, err := h.dial(ctx)
			if err != nil {
				h.tally.send(1, "TCP: "+short(err))
				continue
			}
			silent.keep(conn)
			h.tally.send(1, "")
			continue
		}
		var err error
		if i%(2*handshakesOfOne) == 0 || h.host == nil {
			err = h.appear(ctx)
		} else {
			_ = h.host.Network().ClosePeer(h.target.ID)
			err = h.arrive(ctx)
		}
		if err != nil {
			h.tally.send(1, "handshake: "+short(err))
			continue
		}
		h.tally.send(1, "")
	}
}

// dial opens a TCP connection from the attacker's address.
func (h *hostile) dial(ctx context.Context) (net.Conn, error) {
	to := h.reachable()
	if len(to) == 0 {
		return nil, context.Canceled
	}
	_, address, err := manet.DialArgs(to[0].Decapsulate(peerPart(h.target.ID)))
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: callLimit, LocalAddr: &net.TCPAddr{IP: h.from.AsSlice()}}
	return dialer.DialContext(ctx, "tcp", address)
}
