package keeper

import (
	"context"
	"time"

	record "github.com/libp2p/go-libp2p-record"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Validator validates the values of the DHT's "blackhole" namespace: one record under its own key.
// Its only state is the verifier's cache.
func Validator(v *records.Verifier, now func() time.Time) record.Validator {
	return validator{verifier: v, now: now}
}

type validator struct {
	verifier opener
	now      func() time.Time
}

// Validate returns Invalid for a key or a value that does not belong to the record, and the errors
// of records.Open.
func (v validator) Validate(key string, value []byte) error {
	_, err := v.open(key, value)
	return fault.Wrap("keeper.Validate", err)
}

// open returns the record of a value, if the key is the record's.
func (v validator) open(key string, value []byte) (*records.Record, error) {
	if len(key) > records.MaxKey {
		return nil, fault.Invalidf("key", nil, "must have at most %d bytes, got %d", records.MaxKey, len(key))
	}
	k, err := records.ParseKey(key)
	if err != nil {
		return nil, err
	}
	r, err := v.verifier.Open(value, v.now())
	if err != nil {
		return nil, err
	}
	return r, k.Matches(r)
}

// Select returns the position of the newest valid value, the first of equal ones: kad-dht stores
// [new, old] only for 0, so a record put again counts as new. Without a valid value it returns the
// first value's error.
func (v validator) Select(key string, values [][]byte) (int, error) {
	const op = "keeper.Select"
	if len(values) == 0 {
		return 0, fault.New(op, fault.Invalid, "no values to select from")
	}
	at, failure := -1, error(nil)
	var best *records.Record
	for i, value := range values {
		r, err := v.open(key, value)
		switch {
		case err != nil:
			if failure == nil {
				failure = err
			}
		case best == nil || records.Compare(r, best) > 0:
			at, best = i, r
		}
	}
	if best == nil {
		return 0, fault.Wrap(op, failure)
	}
	return at, nil
}

// Publish puts a record under its own key into the DHT, so that the key alone resolves. It returns
// the router's error. The DHT does not report the number of peers that stored the value.
func (k *Keeper) Publish(ctx context.Context, r *records.Record) (err error) {
	ctx, end, err := k.begin(ctx, "publish", valueTimeout)
	if err != nil {
		return err
	}
	defer func() { end(err) }()
	return fault.Wrap("keeper.Publish", k.Router.PutValue(ctx, r.Key().String(), r.Envelope()))
}

// Resolve returns the newest live record under a key, from the DHT or the index. It adds the DHT's
// record to the index. It returns NotFound for an unknown or withdrawn record.
func (k *Keeper) Resolve(ctx context.Context, key records.Key) (_ *records.Record, err error) {
	const op = "keeper.Resolve"
	ctx, end, err := k.begin(ctx, "resolve", valueTimeout)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	value, failure := k.Router.GetValue(ctx, key.String())
	if failure == nil {
		var r *records.Record
		if r, failure = (validator{k.Verifier, k.Now}).open(key.String(), value); failure == nil {
			if _, err := k.put(r); err != nil && fault.KindOf(err) != fault.Exists {
				return liveOnly(op, r) // the index is full, but the record is valid
			}
		}
	}
	if known, ok := k.Index.Latest(key.Name); ok && !known.Expired(k.Now()) && key.Matches(known) == nil {
		return liveOnly(op, known)
	}
	if failure == nil {
		failure = fault.New("", fault.NotFound, "the newer version uses a different key")
	}
	return nil, fault.Wrap(op, failure)
}

// liveOnly returns NotFound for a tombstone.
func liveOnly(op string, r *records.Record) (*records.Record, error) {
	if r.Withdrawn() {
		return nil, fault.New(op, fault.NotFound, "the record was withdrawn at %s", r.Issued().UTC().Format(time.RFC3339))
	}
	return r, nil
}
