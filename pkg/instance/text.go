package instance

import (
	"slices"
	"strconv"
	"unique"
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

// shared gives one copy of a text to all who ask for it between two collections of garbage. Names, zones
// and tags are few, and each is said by many instances, which come together: when a peer starts, or reads a
// directory. Nor does the copy hold the request that the text was cut out of.
func shared(text string) string {
	if text == "" {
		return ""
	}
	return unique.Make(text).Value()
}

// sorted gives the texts ascending, each once and shared; nil for none.
func sorted(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.Sort(list)
	list = slices.Clip(slices.Compact(list))
	for i := range list {
		list[i] = shared(list[i])
	}
	return list
}

// cloneMap gives nil for an empty one. Keys are shared.
func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	clone := make(map[string]string, len(m))
	for key, value := range m {
		clone[shared(key)] = value
	}
	return clone
}
