package query

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fold maps strings that differ only in case to one lower-case string: Fold(a) == Fold(b)
// exactly if strings.EqualFold(a, b). ASCII without capitals needs no allocation.
//
// Fold uses Unicode's simple case folding. Invalid UTF-8 becomes U+FFFD.
func Fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return strings.Map(foldRune, s)
}

// foldRune returns the least rune of r's case orbit, with Latin letters in lower case.
func foldRune(r rune) rune {
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	if 'A' <= least && least <= 'Z' {
		least += 'a' - 'A'
	}
	return least
}

// compareFold orders strings like Fold(a) and Fold(b), without allocating for ASCII.
func compareFold(a, b string) int {
	if !isASCII(a) || !isASCII(b) {
		return strings.Compare(Fold(a), Fold(b))
	}
	for i := range min(len(a), len(b)) {
		if x, y := lower(a[i]), lower(b[i]); x != y {
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}

// upper returns the upper-case form of an ASCII code such as a currency. Other texts are only
// folded.
func upper(s string) string {
	s = Fold(s)
	if !isASCII(s) {
		return s
	}
	return strings.ToUpper(s)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
