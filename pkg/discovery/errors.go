package discovery

import contract "github.com/blackhole/blackhole/internal/contract/discovery"

// The sentinels of the U06 Service Discovery Protocol, section 8, as templates for errors.Is: an error of a
// Plane matches all templates that describe it.
//
//	errors.Is(err, discovery.ErrInvalidLocation) // any error about a field of "location"
var (
	// ErrInvalidService: the offer is invalid.
	ErrInvalidService = contract.ErrInvalidService
	// ErrServiceExists: this peer already offers a service of that id.
	ErrServiceExists = contract.ErrServiceExists
	// ErrProviderLimitReached: the provider has the maximum of services.
	ErrProviderLimitReached = contract.ErrProviderLimitReached
	// ErrSignatureFailed: signing a record failed, or a signature is invalid.
	ErrSignatureFailed = contract.ErrSignatureFailed

	// ErrInvalidQuery: the query is invalid.
	ErrInvalidQuery = contract.ErrInvalidQuery
	// ErrNoServicesFound: a key or an id without a service. A search without matches returns no error.
	ErrNoServicesFound = contract.ErrNoServicesFound
	// ErrQueryTimeout: the deadline passed before the first keeper's answer.
	ErrQueryTimeout = contract.ErrQueryTimeout

	// ErrDHTOperation: the network refused or lost a lookup or a store.
	ErrDHTOperation = contract.ErrDHTOperation
	// ErrDHTNotReady: the peer has not joined a network yet.
	ErrDHTNotReady = contract.ErrDHTNotReady

	// ErrMissingMetadata: the metadata of an offer are missing or invalid.
	ErrMissingMetadata = contract.ErrMissingMetadata
	// ErrInvalidCapabilities: the capabilities of an offer are out of range or do not fit its type.
	ErrInvalidCapabilities = contract.ErrInvalidCapabilities
	// ErrInvalidLocation: the place of an offer is impossible.
	ErrInvalidLocation = contract.ErrInvalidLocation
	// ErrInvalidPricing: the price of an offer is impossible.
	ErrInvalidPricing = contract.ErrInvalidPricing
)
