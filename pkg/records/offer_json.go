package records

import (
	"errors"

	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxOffer limits the JSON form of one offer, in bytes.
const MaxOffer = 64 << 10

// ParseOffer reads one offer from JSON under the rules of package strictjson and validates it.
// Errors name the field by its path ("capabilities.compute.cpu_cores").
func ParseOffer(data []byte) (Offer, error) {
	o, err := parseOffer(data)
	return o, fault.Wrap("records.ParseOffer", err)
}

func parseOffer(data []byte) (Offer, error) {
	var o Offer
	err := strictjson.Decode(data, MaxOffer, &o)
	if field := fault.FieldOf(err); errors.Is(err, strictjson.ErrUnknown) && setByPeer(field) {
		err = fault.Invalidf(field, nil, "is filled in by the peer")
	}
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return Offer{}, err
	}
	if h := o.Health; h != nil && h.LastCheck != nil {
		*h.LastCheck = h.LastCheck.UTC()
	}
	return o, nil
}

// setByPeer reports whether the peer, instead of the provider, writes a field of the record.
func setByPeer(field string) bool {
	switch field {
	case "provider_id", "created_at", "updated_at", "expires_at", "signature", "sequence", "withdrawn", "paused", "key", "content_id":
		return true
	}
	return false
}
