// Package sample summarises measured durations.
package sample

import (
	"math"
	"slices"
	"time"
)

// Quantile gives the q-quantile (0 to 1) of measurements by the nearest rank: the least
// measured value that is not less than a share q of them. Of none it is 0.
func Quantile(measured []time.Duration, q float64) time.Duration {
	if len(measured) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(measured))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
