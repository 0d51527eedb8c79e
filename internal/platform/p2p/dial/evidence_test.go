package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/multiformats/go-multiaddr"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
)

func TestInterpret(t *testing.T) {
	dial := func(causes ...error) error {
		e := &swarm.DialError{Cause: swarm.ErrAllDialsFailed}
		for i, c := range causes {
			e.DialErrors = append(e.DialErrors, swarm.TransportError{Address: multiaddr.StringCast(fmt.Sprintf("/ip4/192.0.2.%d/tcp/1", i)), Cause: c})
		}
		return fmt.Errorf("wrapped: %w", e)
	}
	op := func(err error) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}
	}
	late := &swarm.DialError{Cause: context.DeadlineExceeded, DialErrors: []swarm.TransportError{{Cause: network.ErrResourceLimitExceeded}}}
	for name, c := range map[string]struct {
		err  error
		want Evidence
	}{
		"closed port":                      {dial(op(syscall.ECONNREFUSED)), Closed},
		"silence":                          {dial(context.DeadlineExceeded), Silence},
		"silence and a closed port":        {dial(op(syscall.ETIMEDOUT), op(syscall.ECONNREFUSED)), Closed},
		"accepted, then closed":            {dial(fmt.Errorf("failed to negotiate security protocol: %w", io.EOF)), Refusal},
		"accepted, then reset":             {dial(op(syscall.ECONNRESET)), Refusal},
		"no room at one of many addresses": {dial(context.DeadlineExceeded, op(syscall.ECONNREFUSED), io.EOF), Refusal},
		"code of a full peer over QUIC":    {dial(&quicgo.ApplicationError{Remote: true, ErrorCode: quicgo.ApplicationErrorCode(network.ConnResourceLimitExceeded)}), Refusal},
		"refusal before the handshake":     {dial(&quicgo.TransportError{Remote: true, ErrorCode: quicgo.ConnectionRefused}), Refusal},
		"handshake without an answer":      {dial(&quicgo.HandshakeTimeoutError{}), Silence},
		"trimmed":                          {&network.ConnError{Remote: true, ErrorCode: network.ConnGarbageCollected}, Refusal},
		"no room for a stream":             {&network.StreamError{Remote: true, ErrorCode: network.StreamResourceLimitExceeded}, Refusal},
		"our limit":                        {dial(network.ErrResourceLimitExceeded), Local},
		"our limit and a closed port":      {dial(network.ErrResourceLimitExceeded, op(syscall.ECONNREFUSED)), Closed},
		"no route of our own":              {dial(op(syscall.ENETUNREACH)), Local},
		"our files":                        {dial(op(syscall.EMFILE)), Local},
		"a relay without room":             {dial(errors.New("error opening relay circuit: RESOURCE_LIMIT_EXCEEDED (201)")), Local},
		"our guess":                        {dial(swarm.ErrDialRefusedBlackHole), Local},
		"our cache":                        {dial(swarm.ErrDialBackoff), Local},
		"too late for some addresses":      {late, Silence},
		"no address":                       {&swarm.DialError{Cause: swarm.ErrNoGoodAddresses}, Local},
		"another peer":                     {dial(errors.New("peer id mismatch")), Closed},
	} {
		require.Equal(t, c.want, Interpret(c.err), name)
	}
}
