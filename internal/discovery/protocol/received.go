package protocol

import (
	"errors"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Records of other keepers may come from later versions of the program. An unknown field changes nothing. A record
// with an unknown critical feature is kept and served like any other, but no answer of this peer shows it. Bytes that
// this version does not read are left out. None of that is an offence.

// Opener verifies an envelope; *records.Verifier implements it.
type Opener interface {
	Open(envelope []byte, now time.Time) (*records.Record, error)
}

// Receive verifies an envelope of another keeper. Left is the reason for leaving the record out without blame: it is
// not valid by this peer's clock, or this version does not read it. Err is a breach: a forged or oversized record.
func Receive(verifier Opener, envelope []byte, now time.Time) (r *records.Record, left, err error) {
	r, err = verifier.Open(envelope, now)
	switch {
	case err == nil:
		return r, nil, nil
	case records.Blameless(err):
		return nil, err, nil
	default:
		return nil, nil, Breach("a record does not verify: %w", err)
	}
}

// Unread reports whether a record was left out because this version does not read it.
func Unread(left error) bool { return !Untimely(left) && !records.OfOtherNetwork(left) }

// Untimely reports whether a record was left out as expired or from the future by this peer's clock.
func Untimely(left error) bool { return fault.KindOf(left) == fault.Conflict }

// Breach returns the error for a message that violates the protocol: no honest keeper sends it.
func Breach(format string, args ...any) error {
	return fault.New("keeper.ask", fault.Unauthentic, format, args...)
}

// NotKept refuses cells that this peer does not keep.
func NotKept() error {
	return &fault.Error{Kind: fault.Forbidden, Field: "cells", Err: errors.New("other keepers store some cells: repeat the lookup")}
}
