package fault

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text requires at most limit bytes of UTF-8 without control characters and invisible
// characters. A direction mark (U+202E) or a zero-width space (U+200B) makes one name look like
// another. The error is Invalid and names the field.
func Text(field, s string, limit int) error {
	switch {
	case len(s) > limit:
		return Invalidf(field, nil, "must be at most %d bytes, not %d", limit, len(s))
	case !utf8.ValidString(s):
		return Invalidf(field, nil, "must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return Invalidf(field, nil, "must not have control characters")
	case hides(s):
		return Invalidf(field, nil, "must not have invisible characters, such as direction marks and zero-width spaces")
	}
	return nil
}

// Counted is a number with its noun: 1 peer, 2 peers.
func Counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// hides reports whether a text has a character that shows nothing, or a selector of variants without a character
// before it to select: emoji need one, and a row of them hides a message.
func hides(s string) bool {
	selected := true
	for _, r := range s {
		if r < utf8.RuneSelf { // most are
			selected = false
			continue
		}
		selector := unicode.Is(unicode.Variation_Selector, r)
		if invisible(r) || selector && selected {
			return true
		}
		selected = selector
	}
	return false
}

// invisible reports whether a character shows nothing: one of format, a separator of lines or paragraphs (Unicode categories
// Cf, Zl, Zp), one that fonts leave out (fillers of Hangul), or the empty Braille pattern.
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point) || r == '\u2800'
}
