package instance

import (
	"maps"
	"slices"
	"strconv"
)

// consists reports whether every byte of text is of a class.
func consists(text string, class func(byte) bool) bool {
	for i := range len(text) {
		if !class(text[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isLabel(c byte) bool { return isLower(c) || isDigit(c) || c == '-' }
func isHost(c byte) bool  { return isLabel(c) || 'A' <= c && c <= 'Z' || c == '_' }
func isID(c byte) bool    { return isHost(c) || c == '.' || c == ':' }

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// sorted gives the texts ascending, each once; nil for none.
func sorted(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Clip(slices.Compact(list))
}

// cloneMap gives nil for an empty one.
func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
