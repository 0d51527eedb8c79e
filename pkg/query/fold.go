package query

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fold gives the one spelling of all strings that differ only in case, in lower case:
// Fold(a) == Fold(b) exactly when strings.EqualFold(a, b). It does not allocate for
// ASCII without capitals.
//
// Case is Unicode's simple folding. Bytes that are not UTF-8 become U+FFFD.
func Fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return strings.Map(foldRune, s)
}

// foldRune is the least rune of r's case orbit, except that Latin letters are small.
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

// compareFold orders as comparing Fold(a) with Fold(b) does, without allocating for ASCII.
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

// upper is Fold in capitals where that keeps the meaning: for codes that people write so.
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
