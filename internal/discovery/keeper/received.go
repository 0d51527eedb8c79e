package keeper

import (
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Records of other keepers may come from later versions of the program. An unknown field changes nothing. A record
// with an unknown critical feature is kept and served like any other, but no answer of this peer shows it. Bytes that
// this version does not read are left out. None of that is an offence.

// opener verifies an envelope; *records.Verifier implements it.
type opener interface {
	Open(envelope []byte, now time.Time) (*records.Record, error)
}

// receive verifies an envelope of another keeper. Left is the reason for leaving the record out without blame: it is
// not valid by this peer's clock, or this version does not read it. Err is a breach: a forged or oversized record.
func receive(verifier opener, envelope []byte, now time.Time) (r *records.Record, left, err error) {
	r, err = verifier.Open(envelope, now)
	switch {
	case err == nil:
		return r, nil, nil
	case records.Blameless(err):
		return nil, err, nil
	default:
		return nil, nil, breach("a record does not verify: %w", err)
	}
}

// unread reports whether a record was left out because this version does not read it.
func unread(left error) bool { return !untimely(left) && !records.OfOtherNetwork(left) }

// untimely reports whether a record was left out as expired or from the future by this peer's clock.
func untimely(left error) bool { return fault.KindOf(left) == fault.Conflict }

// countLeft counts a record that was left out.
func (e *Env) countLeft(left error) {
	switch {
	case untimely(left):
		e.Recorder.Refused("untimely")
	case records.OfOtherNetwork(left):
		e.Recorder.Refused("other_network")
	default:
		e.Recorder.Refused(fault.KindOf(left).String())
	}
}
