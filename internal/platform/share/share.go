// Package share divides the places of a pool among those who use it. All pools follow its one rule: of callers, of peers,
// and of the state of the group.
package share

// times is how many places one may have for each free one.
const times = 3

// Fits reports whether one that has own places of a pool may have more, given the free ones before. It may have up to three times
// as many as are free afterwards, and the last one it takes counts as free: alone it leaves a quarter to others, and the next greedy one a quarter of the
// rest. 5 that keep what they get leave a place of 1024 (dynamic thresholds of Choudhury and Hahne, IEEE/ACM Transactions on
// Networking 6(2), 1998). A pool with a reserve for others leaves that out of free.
func Fits(own, more, free uint64) bool {
	return more <= free && own+more <= times*(free-more+1)
}
