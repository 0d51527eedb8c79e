package term

import (
	"unicode"

	"golang.org/x/text/width"
)

// textWidth is the number of terminal columns of a text: characters of Chinese, Japanese and Korean and most emoji take two,
// marks on the character before them take none.
func textWidth(text string) int {
	sum := 0
	for _, r := range text {
		sum += runeWidth(r)
	}
	return sum
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// fitting counts the characters at the start of a text that fit into a number of columns, with their marks. It is at least 1,
// so that a loop over lines ends.
func fitting(text []rune, columns int) int {
	sum := 0
	for n, r := range text {
		if sum += runeWidth(r); sum > columns {
			return max(n, 1)
		}
	}
	return len(text)
}
