package query

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// quick reads a query in the JSON form that programs write: one object of known names,
// each once, whose strings are ASCII without escapes. It reports false for anything else,
// which setObject then reads or says what is wrong with; what quick reads, setObject
// reads alike, but slower.
func quick(data []byte) (q Query, ok bool) {
	s := scanner{in: data}
	s.object(q.member)
	s.space()
	if s.strayed || len(s.in) > 0 {
		return Query{}, false
	}
	return q, true
}

// scanner takes values off the front of a text.
type scanner struct {
	in      []byte
	strayed bool // in is not what was expected, and nothing that was read counts
}

// space takes off white space.
func (s *scanner) space() {
	for len(s.in) > 0 && (s.in[0] == ' ' || s.in[0] == '\n' || s.in[0] == '\t' || s.in[0] == '\r') {
		s.in = s.in[1:]
	}
}

// next takes off a mark and the space before it, if it follows.
func (s *scanner) next(mark byte) bool {
	s.space()
	if len(s.in) == 0 || s.in[0] != mark {
		return false
	}
	s.in = s.in[1:]
	return true
}

// want takes off a mark that must follow.
func (s *scanner) want(mark byte) { s.strayed = s.strayed || !s.next(mark) }

// object reads an object into the fields that member gives.
func (s *scanner) object(member func(name string) any) {
	var room [32]any
	seen := room[:0]
	s.want('{')
	for first := true; !s.strayed && !s.next('}'); first = false {
		if !first {
			s.want(',')
		}
		target := member(string(s.text()))
		s.want(':')
		if target == nil || slices.Contains(seen, target) {
			s.strayed = true
			return
		}
		seen = append(seen, target)
		s.value(target)
	}
}

// value reads a value into a field.
func (s *scanner) value(target any) {
	switch t := target.(type) {
	case *string:
		*t = string(s.text())
	case *bool:
		*t = s.bool()
	case *int:
		*t = int(s.whole(strconv.IntSize - 1))
	case *uint32:
		*t = uint32(s.whole(32))
	case **uint32:
		v := uint32(s.whole(32))
		*t = &v
	case *uint64:
		*t = s.whole(64)
	case *float64:
		*t = s.number()
	case **float64:
		v := s.number()
		*t = &v
	case *[]string:
		*t = s.list()
	case **Near:
		*t = s.near()
	default:
		s.strayed = true
	}
}

// text reads a string, which is part of the input.
func (s *scanner) text() []byte {
	s.want('"')
	for i, c := range s.in {
		switch {
		case c == '"':
			text := s.in[:i]
			s.in = s.in[i+1:]
			return text
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			s.strayed = true
			return nil
		}
	}
	s.strayed = true
	return nil
}

// list reads a list of strings.
func (s *scanner) list() []string {
	list := []string{}
	s.want('[')
	for !s.strayed && !s.next(']') {
		if len(list) > 0 {
			s.want(',')
		}
		list = append(list, string(s.text()))
	}
	return list
}

// near reads a place.
func (s *scanner) near() *Near {
	n := &Near{Latitude: math.NaN(), Longitude: math.NaN()}
	s.object(n.member)
	s.strayed = s.strayed || math.IsNaN(n.Latitude) || math.IsNaN(n.Longitude)
	return n
}

// bool reads true or false.
func (s *scanner) bool() bool {
	word := s.take(func(c byte) bool { return 'a' <= c && c <= 'z' })
	s.strayed = s.strayed || string(word) != "true" && string(word) != "false"
	return string(word) == "true"
}

// number reads a number: what a float can hold, of the characters and beginning as JSON has it.
func (s *scanner) number() float64 {
	word := s.take(func(c byte) bool { return '0' <= c && c <= '9' || c == '-' || c == '.' })
	v, err := strconv.ParseFloat(string(word), 64)
	s.strayed = s.strayed || err != nil || !decimal(word)
	return v
}

// whole reads a whole number of so many bits.
func (s *scanner) whole(bits int) uint64 {
	word := s.take(func(c byte) bool { return '0' <= c && c <= '9' })
	v, err := strconv.ParseUint(string(word), 10, bits)
	s.strayed = s.strayed || err != nil || !decimal(word)
	return v
}

// decimal reports whether what strconv takes for a number is one in JSON, too: there,
// digits stand around a point, and 0 is not followed by digits.
func decimal(word []byte) bool {
	if word[0] == '-' {
		word = word[1:]
	}
	last := word[len(word)-1]
	return word[0] != '.' && last != '.' && (word[0] != '0' || len(word) == 1 || word[1] == '.')
}

// take takes off the characters that a word may have, and the space before it.
func (s *scanner) take(legal func(byte) bool) []byte {
	s.space()
	n := slices.IndexFunc(s.in, func(c byte) bool { return !legal(c) })
	if n < 0 {
		n = len(s.in)
	}
	word := s.in[:n]
	s.in = s.in[n:]
	return word
}
