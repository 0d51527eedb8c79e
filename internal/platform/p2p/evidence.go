package p2p

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/quic-go/quic-go"
)

// evidence is the information that a failed dial or ping contains about the other peer, the strongest last.
type evidence uint8

const (
	local   evidence = iota // says nothing about the other peer: the cause is on this side
	silence                 // no answer in time
	closed                  // a closed port, or another peer or program at the address
	refusal                 // an answer by the peer's process, which then ended the connection
)

// interpret returns the strongest evidence of an error. One address that refuses for lack of room outweighs
// silence at all other addresses.
func interpret(err error) evidence {
	var dial *swarm.DialError
	if !errors.As(err, &dial) || len(dial.DialErrors) == 0 {
		return interpretOne(err)
	}
	strongest := local
	for i := range dial.DialErrors {
		strongest = max(strongest, interpretOne(dial.DialErrors[i].Cause))
	}
	if dial.Timeout() || errors.Is(dial.Cause, context.DeadlineExceeded) {
		strongest = max(strongest, silence) // the time ended before the last address was dialed
	}
	return strongest
}

// interpretOne interprets the error of one address or stream.
func interpretOne(err error) evidence {
	switch {
	case isAny(err, localErrors()):
		return local
	case strings.Contains(err.Error(), "RESOURCE_LIMIT_EXCEEDED"): // of a relay, which has no error type for it
		return local
	case closedByRemote(err):
		return refusal
	case os.IsTimeout(err), isTimeout(err), isAny(err, silentErrors()):
		return silence
	case isAny(err, endedErrors()):
		return refusal
	}
	return closed
}

// result converts evidence to the result of a probe. others: this peer has a connection to another peer.
func (e evidence) result(others bool) result {
	switch {
	case e == refusal:
		return busy
	case e == local, e == silence && !others:
		return undecided
	}
	return failed
}

func isAny(err error, list []error) bool {
	return slices.ContainsFunc(list, func(target error) bool { return errors.Is(err, target) })
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// closedByRemote reports a code that the other process sent: it closed the connection or the stream. TCP's own
// codes are in endedErrors.
func closedByRemote(err error) bool {
	var (
		conn        *network.ConnError
		stream      *network.StreamError
		application *quic.ApplicationError
		transport   *quic.TransportError
	)
	return errors.As(err, &conn) && conn.Remote ||
		errors.As(err, &stream) && stream.Remote ||
		errors.As(err, &application) && application.Remote ||
		errors.As(err, &transport) && transport.Remote && transport.ErrorCode == quic.ConnectionRefused
}

// localErrors are causes at this peer.
func localErrors() []error {
	return []error{
		network.ErrResourceLimitExceeded, network.ErrNoConn, network.ErrLimitedConn, network.ErrNoRemoteAddrs,
		swarm.ErrDialBackoff, swarm.ErrDialRefusedBlackHole, swarm.ErrGaterDisallowedConnection, swarm.ErrNoTransport,
		swarm.ErrDialToSelf, swarm.ErrAddrFiltered, swarm.ErrNoAddresses, swarm.ErrNoGoodAddresses, swarm.ErrSwarmClosed,
		context.Canceled,
		syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOBUFS, syscall.EPERM, syscall.EACCES,
	}
}

// silentErrors are timeouts, and hosts that do not answer in their network.
func silentErrors() []error {
	return []error{context.DeadlineExceeded, swarm.ErrDialTimeout, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN}
}

// endedErrors are the ends of an accepted connection. A TCP port that is closed gives ECONNREFUSED instead.
func endedErrors() []error {
	return []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, network.ErrReset}
}
