package query

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
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

// hasWords reports whether a text contains folded words, next to each other as in want, and no part of a longer word. The text is ASCII or folded.
func hasWords(text, want []byte) bool {
	within := func(beside []byte, decode func([]byte) (rune, int), next rune) bool { // a word goes on
		r, size := decode(beside)
		return size > 0 && inWord(r) && inWord(next)
	}
	first, _ := utf8.DecodeRune(want)
	last, _ := utf8.DecodeLastRune(want)
	for at, end := 0, len(text)-len(want); at <= end; at++ {
		if lower(text[at]) == want[0] && hasPrefix(text[at:], want, false) &&
			!within(text[:at], utf8.DecodeLastRune, first) && !within(text[at+len(want):], utf8.DecodeRune, last) {
			return true
		}
	}
	return false
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// forTexts calls take with all texts that a provider writes into the message at a path, depth numbers long. key is that of an attribute.
func forTexts(b []byte, at path, depth int, take func(at path, key, text []byte)) {
	for len(b) > 0 {
		number, kind, value, rest := cutField(b)
		if b = rest; kind != protowire.BytesType {
			continue
		}
		switch at[depth] = number; {
		case at == path{3, 8}: // attributes
			key, v := readEntry(value.bytes)
			take(at, key, v.bytes)
		case depth == 0 && number >= 3 && number <= 5, at[0] == 4 && depth == 1, at == path{4, 2, 3}:
			forTexts(value.bytes, at, depth+1, take)
		case at == path{1}, depth > 0:
			take(at, nil, value.bytes)
		}
	}
}

// forWords calls take with the texts in which words are looked for: all but endpoints. Each is ASCII or folded.
func forWords(payload []byte, take func(text []byte)) {
	forTexts(payload, path{}, 0, func(at path, key, v []byte) {
		for _, text := range [...][]byte{key, v} {
			if slices.ContainsFunc(text, func(c byte) bool { return c >= utf8.RuneSelf }) {
				text = []byte(Fold(string(text)))
			}
			if len(text) > 0 && at != (path{3, 6}) {
				take(text)
			}
		}
	})
}

// Words is a set of words that may seem to have others (a Bloom filter with three bits for each word): the record of some 25 words passes for
// one that lacks a word in 2 of 100 cases. The zero value is empty.
type Words [4]uint64

// Add adds the words of a record's texts.
func (w *Words) Add(r *records.Record) { forWords(r.Payload(), w.add) }

// add adds the words of a text that is ASCII or folded.
func (w *Words) add(text []byte) {
	for word := range bytes.FieldsFuncSeq(text, func(r rune) bool { return !inWord(r) }) {
		h := uint64(fnvOffset)
		for _, c := range word {
			h = (h ^ uint64(lower(c))) * fnvPrime
		}
		for h, n := mix(h), 0; n < 3; h, n = h<<8, n+1 { // a byte for each bit
			w[h>>62] |= 1 << (h >> 56 & 63)
		}
	}
}

// MayHave reports whether a record with some words may match.
func (p *Plan) MayHave(w *Words) bool {
	lacks := func(v Words) bool { return v[0]&^w[0]|v[1]&^w[1]|v[2]&^w[2]|v[3]&^w[3] != 0 }
	return !slices.ContainsFunc(p.words, func(any []Words) bool { return !slices.ContainsFunc(any, func(v Words) bool { return !lacks(v) }) })
}

// wordsFor returns sets of words that matches of a normalised query have: all of at least one set of each list.
func wordsFor(q *query.Query) (all [][]Words) {
	for i := range q.Where {
		if c := &q.Where[i]; c.Field == wordsName && !c.Not && !c.OrUnstated {
			sets := make([]Words, len(c.Values))
			for j, v := range c.Values {
				sets[j].add([]byte(v))
			}
			if c.Op == query.OpAny {
				all = append(all, sets)
				continue
			}
			for j := range sets {
				all = append(all, sets[j:j+1])
			}
		}
	}
	return all
}
