package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// valueFormat is the version of the encoding of a service in the database. A reader
// refuses any other.
const valueFormat = 1

// value is a service in the database.
type value struct {
	Format     int             `json:"format"`
	Offer      json.RawMessage `json:"offer,omitempty"` // absent: withdrawn
	Created    time.Time       `json:"created"`
	Until      time.Time       `json:"until"`
	Current    signed          `json:"current"`
	Tombstones []signed        `json:"tombstones,omitempty"`
}

// signed is one version. The time of issue is one at which the envelope certainly opens.
type signed struct {
	Issued   time.Time `json:"issued"`
	Envelope []byte    `json:"envelope"`
}

func signedOf(r *records.Record) signed { return signed{Issued: r.Issued(), Envelope: r.Envelope()} }

// encode gives the database's form of a service.
func (s *service) encode() ([]byte, error) {
	v := value{Format: valueFormat, Offer: s.offer, Created: s.created, Until: s.until, Current: signedOf(s.current)}
	for _, r := range s.tombstones {
		v.Tombstones = append(v.Tombstones, signedOf(r))
	}
	data, err := json.Marshal(v)
	return data, fault.As("registry.encode", fault.Internal, err)
}

// decodeService reads what encode wrote for the service of that name, and trusts nothing:
// signatures, identity and invariants are checked.
func decodeService(name records.Name, data []byte) (*service, error) {
	var v value
	if err := decodeStrict(data, &v); err != nil {
		return nil, err
	}
	if v.Format != valueFormat {
		return nil, fault.New("", fault.Unsupported, "format %d of the value is not known", v.Format)
	}
	s := &service{created: v.Created, until: v.Until}
	var err error
	if s.current, err = v.Current.open(name); err != nil {
		return nil, err
	}
	if s.current.Withdrawn() != (v.Offer == nil) {
		return nil, errors.New("exactly a live service has an offer")
	}
	if s.until.Before(s.current.Expires()) {
		return nil, errors.New("expires after the time noted")
	}
	if v.Offer != nil {
		s.offer = v.Offer
		if o, err := s.decodeOffer(); err != nil || o.ID != name.ID {
			return nil, errors.Join(errors.New("not an offer of this service"), err)
		}
	}
	s.tombstones, err = openTombstones(name, v.Tombstones, s.current.Sequence())
	return s, err
}

// openTombstones wants tombstones in order, all older than the current version.
func openTombstones(name records.Name, list []signed, current uint64) ([]*records.Record, error) {
	var (
		farewells []*records.Record
		last      uint64
	)
	for _, f := range list {
		r, err := f.open(name)
		switch {
		case err != nil:
			return nil, err
		case !r.Withdrawn() || r.Sequence() <= last || r.Sequence() >= current:
			return nil, errors.New("tombstones are not tombstones in order")
		}
		last = r.Sequence()
		farewells = append(farewells, r)
	}
	return farewells, nil
}

func (v signed) open(name records.Name) (*records.Record, error) {
	r, err := records.Open(v.Envelope, v.Issued)
	if err != nil {
		return nil, err
	}
	if r.Name() != name {
		return nil, errors.New("holds the record of " + r.Name().String())
	}
	return r, nil
}

// decodeOffer gives the offer of a live service; the caller owns it.
func (s *service) decodeOffer() (records.Offer, error) {
	var o records.Offer
	err := decodeStrict(s.offer, &o)
	return o, err
}

// decodeStrict refuses fields that are not known and anything after the value.
func decodeStrict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}
