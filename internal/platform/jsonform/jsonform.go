// Package jsonform appends single values in the form of encoding/json, without reflection, and
// without allocation if the destination has room. It serves the few answers whose cost is mostly
// the standard encoder.
package jsonform

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendString appends s like json.Marshal: quoted, with escapes for quotes, backslashes,
// control characters and the special characters of HTML and JavaScript (<, >, &, U+2028,
// U+2029), and with \ufffd for invalid UTF-8.
func AppendString[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	done := 0 // s[:done] is written
	for i := 0; i < len(s); {
		if plain(s[i]) {
			i++
			continue
		}
		size, r := 1, rune(s[i])
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if r != '\u2028' && r != '\u2029' && (r != utf8.RuneError || size > 1) {
				i += size
				continue
			}
		}
		dst = appendEscape(append(dst, s[done:i]...), r)
		i += size
		done = i
	}
	return append(append(dst, s[done:]...), '"')
}

// plain reports whether an ASCII byte needs no escape. escaped has a bit for each special byte
// below 64; the backslash is the only one above.
func plain(b byte) bool {
	const escaped = 1<<' ' - 1 | 1<<'"' | 1<<'&' | 1<<'<' | 1<<'>'
	if b < 64 {
		return uint64(escaped)>>b&1 == 0
	}
	return b < utf8.RuneSelf && b != '\\'
}

// appendEscape appends the escape of a special character.
func appendEscape(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// AppendNumber appends f like json.Marshal, as the shortest decimal that parses to f. NaN and
// the infinities become null.
func AppendNumber(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	switch {
	case math.IsNaN(f) || abs > math.MaxFloat64:
		return append(dst, "null"...)
	case abs == 0 || abs >= 1e-6 && abs < 1e21:
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); string(dst[n-4:n-1]) == "e-0" { // e-07 becomes e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// AppendTime appends t, of the years 0 to 9999, like json.Marshal: RFC 3339 with the necessary
// decimals of the second.
func AppendTime(dst []byte, t time.Time) []byte {
	dst = append(dst, '"')
	dst = t.AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}
