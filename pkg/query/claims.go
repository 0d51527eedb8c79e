package query

// Claims says whether scores, and the orders of results, believe what providers claim of themselves: uptime, errors and
// response time. Price and place are terms of the offer, and count in full.
type Claims string

// The weights of claims.
const (
	ClaimsTrust Claims = "trust" // in full: the formula and the orders of the U06 Service Discovery Protocol
	ClaimsCheck Claims = "check" // a measurement counts, a claim does not; offers are spread over providers
)
