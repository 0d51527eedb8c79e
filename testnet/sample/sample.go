// Package sample summarises measured durations.
package sample

import (
	"math"
	"slices"
	"time"
)

// Quantile returns the q-quantile (0 to 1) by the nearest rank: the smallest value with at least
// a share q of all values at or below it. Without measurements it is 0.
func Quantile(measured []time.Duration, q float64) time.Duration {
	if len(measured) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(measured))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
