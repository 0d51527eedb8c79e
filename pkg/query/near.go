package query

import (
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxNear bounds the text of a place, in bytes, like that of a whole query.
const maxNear = 64 << 10

// UnmarshalJSON reads a place under the rules of package strictjson. Latitude and longitude are
// required.
func (n *Near) UnmarshalJSON(data []byte) error {
	var in struct {
		Latitude  *float64 `json:"latitude"`
		Longitude *float64 `json:"longitude"`
		RadiusKM  *float64 `json:"radius_km"`
	}
	if err := strictjson.Decode(data, maxNear, &in); err != nil {
		return err
	}
	switch {
	case in.Latitude == nil:
		return fault.Invalidf("latitude", nil, "is required")
	case in.Longitude == nil:
		return fault.Invalidf("longitude", nil, "is required")
	}
	*n = Near{Latitude: *in.Latitude, Longitude: *in.Longitude, RadiusKM: in.RadiusKM}
	return nil
}
