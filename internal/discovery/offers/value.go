package offers

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// valueFormat is the version of a service's encoding in the database. Other versions are refused.
const valueFormat = 1

// maxValue bounds a service in the database, in bytes: an offer and at most maxTombstones+1 envelopes.
const maxValue = 1 << 20

// value is a service in the database.
type value struct {
	Format     int             `json:"format"`
	Offer      json.RawMessage `json:"offer,omitempty"` // absent: withdrawn
	Caller     string          `json:"caller,omitempty"`
	Operator   bool            `json:"operator,omitempty"`
	Created    time.Time       `json:"created"`
	Until      time.Time       `json:"until"`
	Current    signed          `json:"current"`
	Tombstones []signed        `json:"tombstones,omitempty"`
}

// signed is one version. At its time of issue, the envelope is valid.
type signed struct {
	Issued   time.Time `json:"issued"`
	Envelope []byte    `json:"envelope"`
}

func signedOf(r *records.Record) signed { return signed{Issued: r.Issued(), Envelope: r.Envelope()} }

// encode encodes a service for the database.
func (s *service) encode() ([]byte, error) {
	v := value{Format: valueFormat, Offer: s.offer, Caller: s.caller.Name, Operator: s.caller.Operator, Created: s.created, Until: s.until, Current: signedOf(s.current)}
	for _, r := range s.tombstones {
		v.Tombstones = append(v.Tombstones, signedOf(r))
	}
	data, err := json.Marshal(v)
	return data, fault.As("registry.encode", fault.Internal, err)
}

// decodeService decodes the value of a service and verifies signatures, identity and invariants.
func decodeService(n network.Name, name records.Name, data []byte) (*service, error) {
	var v value
	if err := strictjson.Decode(data, maxValue, &v); err != nil {
		return nil, err
	}
	if v.Format != valueFormat {
		return nil, fault.New("", fault.Unsupported, "the value has format %d: this program reads format %d", v.Format, valueFormat)
	}
	s := &service{caller: Caller{v.Caller, v.Operator}, created: v.Created, until: v.Until}
	var err error
	if s.current, err = v.Current.open(n, name); err != nil {
		return nil, err
	}
	if s.current.Withdrawn() != (v.Offer == nil) {
		return nil, errors.New("a live service needs an offer, a withdrawn one must have none")
	}
	if s.until.Before(s.current.Expires()) {
		return nil, errors.New("until is earlier than the expiry of the current version")
	}
	if v.Offer != nil {
		s.offer = v.Offer
		o, err := s.decodeOffer()
		if err != nil { // signed again without the unknown member, the offer would change
			return nil, fault.New("", fault.Unsupported, "this program does not understand the offer, which a later version may have registered: start that version: %w", err)
		}
		if o.ID != name.ID {
			return nil, errors.New("the offer belongs to another service")
		}
	}
	s.tombstones, err = openTombstones(n, name, v.Tombstones, s.current.Sequence())
	return s, err
}

// openTombstones verifies that the list contains tombstones in order, all older than the current version.
func openTombstones(n network.Name, name records.Name, list []signed, current uint64) ([]*records.Record, error) {
	var (
		tombstones []*records.Record
		last       uint64
	)
	for _, f := range list {
		r, err := f.open(n, name)
		switch {
		case err != nil:
			return nil, err
		case !r.Withdrawn() || r.Sequence() <= last || r.Sequence() >= current:
			return nil, errors.New("tombstones must be withdrawn versions in order of their sequences")
		}
		last = r.Sequence()
		tombstones = append(tombstones, r)
	}
	return tombstones, nil
}

func (v signed) open(n network.Name, name records.Name) (*records.Record, error) {
	r, err := records.Open(n, v.Envelope, v.Issued)
	if records.OfOtherNetwork(err) {
		return nil, fault.New("", fault.Unsupported, "%s: start with --network and the name of that network; another network needs another data directory, and so another identity", fault.Message(err))
	}
	if err != nil {
		return nil, err
	}
	if r.Name() != name {
		return nil, errors.New("the record belongs to " + r.Name().String())
	}
	return r, nil
}

// decodeOffer returns the offer of a live service; the caller owns it.
func (s *service) decodeOffer() (records.Offer, error) {
	var o records.Offer
	err := strictjson.Decode(s.offer, maxValue, &o)
	return o, err
}
