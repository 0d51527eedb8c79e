package discovery

import (
	"errors"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The sentinels of the U06 Service Discovery Protocol, section 8, as templates for
// errors.Is: an error of this package matches those that describe it.
//
//	errors.Is(err, discovery.ErrInvalidLocation) // any error about a field of "location"
var (
	// ErrInvalidService is an offer that does not validate.
	ErrInvalidService = template(fault.Invalid, "discovery.Register", "", "invalid service record")
	// ErrServiceExists is a registration of an id that this peer offers already.
	ErrServiceExists = template(fault.Exists, "", "", "service already exists")
	// ErrProviderLimitReached is one service more than a provider may have.
	ErrProviderLimitReached = template(fault.LimitReached, "", "", "provider service limit reached")
	// ErrSignatureFailed is a record that could not be signed, or does not verify.
	ErrSignatureFailed = template(fault.Unauthentic, "", "", "failed to sign service record")

	// ErrInvalidQuery is a query that does not validate.
	ErrInvalidQuery = template(fault.Invalid, "discovery.Query", "", "invalid query parameters")
	// ErrNoServicesFound is a key or an id without a service. A search without matches is no error.
	ErrNoServicesFound = template(fault.NotFound, "", "", "no services found")
	// ErrQueryTimeout is a search whose deadline passed before any keeper answered.
	ErrQueryTimeout = template(fault.Timeout, "", "", "query timeout")

	// ErrDHTOperation is a lookup or a store that the network refused or lost.
	ErrDHTOperation = template(fault.Unavailable, "", "", "DHT operation failed")
	// ErrDHTNotReady is a peer that has not joined a network yet.
	ErrDHTNotReady = template(fault.Unavailable, "", "", "DHT not ready")

	// ErrMissingMetadata is an offer whose metadata are missing or invalid.
	ErrMissingMetadata = template(fault.Invalid, "", "metadata", "missing service metadata")
	// ErrInvalidCapabilities is an offer whose capabilities do not fit its type or their ranges.
	ErrInvalidCapabilities = template(fault.Invalid, "", "capabilities", "invalid service capabilities")
	// ErrInvalidLocation is an offer with an impossible place.
	ErrInvalidLocation = template(fault.Invalid, "", "location", "invalid geographic location")
	// ErrInvalidPricing is an offer with an impossible price.
	ErrInvalidPricing = template(fault.Invalid, "", "pricing", "invalid pricing information")
)

func template(kind fault.Kind, op, field, message string) error {
	return &fault.Error{Op: op, Kind: kind, Field: field, Err: errors.New(message)}
}
