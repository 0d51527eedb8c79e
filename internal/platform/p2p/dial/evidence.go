package dial

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/quic-go/quic-go"
)

// Evidence is the information that a failed dial or ping contains about the other peer, the strongest last.
type Evidence uint8

// The kinds of evidence.
const (
	Local   Evidence = iota // says nothing about the other peer: the cause is on this side
	Silence                 // no answer in time
	Closed                  // a closed port, or another peer or program at the address
	Refusal                 // an answer by the peer's process, which then ended the connection
)

// Interpret returns the strongest evidence of an error. One address that refuses for lack of room outweighs
// silence at all other addresses.
func Interpret(err error) Evidence {
	var dial *swarm.DialError
	if !errors.As(err, &dial) || len(dial.DialErrors) == 0 {
		return interpretOne(err)
	}
	strongest := Local
	for i := range dial.DialErrors {
		strongest = max(strongest, interpretOne(dial.DialErrors[i].Cause))
	}
	if dial.Timeout() || errors.Is(dial.Cause, context.DeadlineExceeded) {
		strongest = max(strongest, Silence) // the time ended before the last address was dialed
	}
	return strongest
}

// Everywhere reports whether a dial met a closed port, or another program, at every address that this peer has a route to. Where one
// address was silent the peer may live behind it.
func Everywhere(err error) bool {
	var dial *swarm.DialError
	if !errors.As(err, &dial) || len(dial.DialErrors) == 0 {
		return interpretOne(err) == Closed
	}
	return !dial.Timeout() && Interpret(err) == Closed && !slices.ContainsFunc(dial.DialErrors, func(e swarm.TransportError) bool {
		return interpretOne(e.Cause) != Closed && !isAny(e.Cause, []error{syscall.ENETUNREACH, syscall.EADDRNOTAVAIL})
	})
}

// interpretOne interprets the error of one address or stream.
func interpretOne(err error) Evidence {
	switch {
	case isAny(err, localErrors()):
		return Local
	case strings.Contains(err.Error(), "RESOURCE_LIMIT_EXCEEDED"): // of a relay, which has no error type for it
		return Local
	case closedByRemote(err):
		return Refusal
	case isTimeout(err), isAny(err, silentErrors()):
		return Silence
	case isAny(err, endedErrors()):
		return Refusal
	}
	return Closed
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

// Reason says in a few words why a dial failed.
func Reason(err error) string {
	var other sec.ErrPeerIDMismatch
	switch {
	case errors.As(err, &other):
		return "another peer answers there, " + other.Actual.String()
	case strings.Contains(err.Error(), "peer id mismatch"): // over QUIC it is text alone
		return "another peer answers there"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there (connection refused)"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "there is no route to it"
	case NoRoom(err):
		return "it ends the connection"
	case Interpret(err) == Silence:
		return "no answer"
	}
	text := err.Error()
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// NoRoom reports whether a failed dial reached a peer that has no room for the connection, or failed for want
// of room here. A peer closes such a connection after TCP accepted it, or refuses it in QUIC.
func NoRoom(err error) bool {
	var refused *quic.TransportError
	return SaysNoRoom(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.As(err, &refused) && refused.Remote && refused.ErrorCode == quic.ConnectionRefused
}

// SaysNoRoom reports whether an error states a lack of room for a connection, here or at the other peer.
func SaysNoRoom(err error) bool {
	var closed *network.ConnError
	return errors.Is(err, network.ErrResourceLimitExceeded) || errors.As(err, &closed) &&
		(closed.ErrorCode == network.ConnResourceLimitExceeded || closed.ErrorCode == network.ConnGarbageCollected)
}
