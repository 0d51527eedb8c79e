package discovery

import (
	"errors"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The sentinels of the U06 Service Discovery Protocol, section 8, that pkg/discovery exports, as templates for errors.Is: an error of this
// package matches all templates that describe it.
//
//	errors.Is(err, discovery.ErrInvalidLocation) // any error about a field of "location"
var (
	// ErrInvalidService: the offer is invalid.
	ErrInvalidService = template(fault.Invalid, "discovery.Register", "", "invalid service record")
	// ErrServiceExists: this peer already offers a service of that id.
	ErrServiceExists = template(fault.Exists, "", "", "service already exists")
	// ErrProviderLimitReached: the provider has the maximum of services.
	ErrProviderLimitReached = template(fault.LimitReached, "", "", "provider service limit reached")
	// ErrSignatureFailed: signing a record failed, or a signature is invalid.
	ErrSignatureFailed = template(fault.Unauthentic, "", "", "failed to sign service record")

	// ErrInvalidQuery: the query is invalid.
	ErrInvalidQuery = template(fault.Invalid, "discovery.Query", "", "invalid query parameters")
	// ErrNoServicesFound: a key or an id without a service. A search without matches returns no error.
	ErrNoServicesFound = template(fault.NotFound, "", "", "no services found")
	// ErrQueryTimeout: the deadline passed before the first keeper's answer.
	ErrQueryTimeout = template(fault.Timeout, "", "", "query timeout")

	// ErrDHTOperation: the network refused or lost a lookup or a store.
	ErrDHTOperation = template(fault.Unavailable, "", "", "DHT operation failed")
	// ErrDHTNotReady: the peer has not joined a network yet.
	ErrDHTNotReady = template(fault.Unavailable, "", "", "DHT not ready")

	// ErrMissingMetadata: the metadata of an offer are missing or invalid.
	ErrMissingMetadata = template(fault.Invalid, "", "metadata", "missing service metadata")
	// ErrInvalidCapabilities: the capabilities of an offer are out of range or do not fit its type.
	ErrInvalidCapabilities = template(fault.Invalid, "", "capabilities", "invalid service capabilities")
	// ErrInvalidLocation: the place of an offer is impossible.
	ErrInvalidLocation = template(fault.Invalid, "", "location", "invalid geographic location")
	// ErrInvalidPricing: the price of an offer is impossible.
	ErrInvalidPricing = template(fault.Invalid, "", "pricing", "invalid pricing information")
)

func template(kind fault.Kind, op, field, message string) error {
	return &fault.Error{Op: op, Kind: kind, Field: field, Err: errors.New(message)}
}
