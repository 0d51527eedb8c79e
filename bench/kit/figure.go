package kit

import (
	"cmp"
	"slices"
	"time"
)

// Quantile is the smallest value with at least a share q of all values at or below it, q from 0
// to 1; 0 without values. The order does not matter.
func Quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = sorted(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// Median is the upper median; it needs at least one value.
func Median[T cmp.Ordered](all []T) T { return sorted(all)[len(all)/2] }

// sorted returns a sorted copy.
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
