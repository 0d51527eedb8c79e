package network

import (
	"strconv"
	"strings"
)

// maxNumber is the largest number in a version. It bounds the protocols that a stranger can propose: libp2p keeps
// metrics and limits for each.
const maxNumber = 99

// Compatible reports whether two protocols differ at most in the minor number of their version. The version is the
// last segment: MAJOR, MAJOR.MINOR or MAJOR.MINOR.0. Versions of one major number understand each other. MINOR is
// at most 99.
func Compatible(a, b string) bool {
	if a == b {
		return true
	}
	name, major, ok := versionOf(a)
	other, otherMajor, otherOK := versionOf(b)
	return ok && otherOK && name == other && major == otherMajor
}

// versionOf divides a protocol into its name and its major number. It reports false without a version.
func versionOf(id string) (name, major string, ok bool) {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return "", "", false
	}
	numbers := strings.Split(id[i+1:], ".")
	if len(numbers) > 3 {
		return "", "", false
	}
	for i, n := range numbers {
		if v, err := strconv.ParseUint(n, 10, 16); err != nil || v > maxNumber || strconv.FormatUint(v, 10) != n || i == 2 && v > 0 {
			return "", "", false
		}
	}
	return id[:i], numbers[0], true
}
