// Package figure is what the measuring programs make of many measurements.
package figure

import (
	"cmp"
	"slices"
	"time"
)

// Quantile is the value that a share q of all is not above, q from 0 to 1; 0 of none. The order does not matter.
func Quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = sorted(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// Median is the upper one of an even number, of at least one.
func Median[T cmp.Ordered](all []T) T { return sorted(all)[len(all)/2] }

// sorted copies what is not in order.
func sorted[T cmp.Ordered](all []T) []T {
	if slices.IsSorted(all) {
		return all
	}
	return slices.Sorted(slices.Values(all))
}

// Ms is milliseconds.
func Ms(d time.Duration) float64 { return float64(d) / 1e6 }

// PerOp is microseconds for each of n operations.
func PerOp(d time.Duration, n int) float64 { return float64(d) / 1e3 / float64(max(1, n)) }
