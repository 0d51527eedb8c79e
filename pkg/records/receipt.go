package records

import "time"

// Receipt is the result of an announcement. Whatever Stored reports, the service is registered, durable, and
// announced again until all keepers have it. Until then another peer's complete answer may lack the change.
type Receipt struct {
	ID        string    `json:"id"`
	Key       string    `json:"key"`
	Sequence  uint64    `json:"sequence"`
	ExpiresAt time.Time `json:"expires_at"`
	Stored    Stored    `json:"stored"`
	// Warnings say who will not see the record as it is, or not at once, and why: this peer's clock is wrong, another
	// machine uses its identity, or it changes its services too often.
	Warnings []string `json:"warnings,omitempty"`
}
