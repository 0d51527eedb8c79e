package instance

import (
	"slices"
	"strconv"
	"unique"
)

// consists reports whether all bytes of text belong to a class.
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

// shared returns one copy of equal texts until the next garbage collection.
// Many instances arrive together, at the start of a peer or with a directory,
// and have few different names, zones and tags. The copy also releases the
// request around the text.
func shared(text string) string {
	if text == "" {
		return ""
	}
	return unique.Make(text).Value()
}

// sorted returns the texts ascending, unique and shared; nil for none.
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

// cloneMap shares keys. It returns nil for an empty map.
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
