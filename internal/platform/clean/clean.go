// Package clean makes text from outside fit to be kept, sent and shown: names, details of checks, errors of other
// programs, whatever a stranger wrote. It is the only gate for such text.
//
// The rules are those of fault.Text, which refuses what people enter. Text whose writer cannot be asked again passes
// here instead.
package clean

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxMessage = 8 << 10 // bytes

	mark   = "…" // ends a text that was cut
	breaks = "\t\n\v\f\r\u0085\u2028\u2029"
)

// Text returns a text that fault.Text accepts: one line of UTF-8 of at most most bytes, without control characters,
// direction marks and other characters that show nothing. Breaks of lines and tabs become spaces, and what else must
// not stay becomes U+FFFD. A longer text ends after a whole character, with "…", for which most has room: it is at
// least 3. Cleaning a result again changes nothing.
func Text(s string, most int) string { return cleaned(s, most, "") }

// Lines is Text for what has several lines, such as the output of a program: "\n" and "\t" stay.
func Lines(s string, most int) string { return cleaned(s, most, "\n\t") }

// Message is Lines for the message of an error to a caller.
func Message(s string) string { return Lines(s, maxMessage) }

// cleaned keeps the characters of kept.
func cleaned(s string, most int, kept string) string {
	if fault.Text("", s, most) == nil {
		return s
	}
	var out []byte
	before, fit := "", 0 // the last character with its selector, and the length that leaves room for the mark
	for _, r := range s {
		c := string(r)
		switch {
		case strings.ContainsRune(kept, r):
		case strings.ContainsRune(breaks, r):
			c = " "
		case fault.Text("", before+c, 3*utf8.UTFMax) != nil:
			c = string(utf8.RuneError)
		}
		if len(out)+len(c) > most {
			return string(out[:fit]) + mark
		}
		out = append(out, c...)
		if c == string(r) && unicode.Is(unicode.Variation_Selector, r) {
			before += c
		} else {
			before = strings.Trim(c, kept)
		}
		if len(out)+len(mark) <= most {
			fit = len(out)
		}
	}
	return string(out)
}
