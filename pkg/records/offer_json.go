package records

import (
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxOffer limits the JSON form of one offer, in bytes.
const MaxOffer = 64 << 10

// ParseOffer reads one offer from JSON under the rules of package strictjson and validates it. It takes a View too, so that a program can
// read its record, edit it and put it back: what the peer fills in counts for nothing, provider_id included.
// Errors name the field by its path ("capabilities.compute.cpu_cores").
func ParseOffer(data []byte) (Offer, error) {
	o, err := parseOffer(data)
	return o, fault.Wrap("records.ParseOffer", err)
}

func parseOffer(data []byte) (Offer, error) {
	var v View
	err := strictjson.Decode(data, MaxOffer, &v)
	if err == nil && v.Withdrawn {
		err = fault.Invalidf("withdrawn", true, "is filled in by the peer: withdraw the offer instead")
	}
	o := v.Offer
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
