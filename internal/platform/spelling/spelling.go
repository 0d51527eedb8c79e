// Package spelling finds the words that a mistyped one may stand for.
package spelling

import (
	"slices"
	"strings"
)

const (
	maxWord = 64 // characters of a word that is compared: the time grows with the product of two lengths
	most    = 3  // words that Nearest returns
)

// Distance counts the mistakes between two words: inserted, deleted, replaced and swapped characters (optimal string
// alignment, as in B. Boytsov, 2011).
func Distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, now := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		now[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(y)]
}

// Nearest returns at most three of the words: those with one mistake in a short word, two in a longer one, or those
// that it begins. The closest come first. Words above 64 bytes are never near.
func Nearest(typed string, words []string) []string {
	allowed := min(2, (len([]rune(typed))+1)/3)
	best := map[string]int{}
	for _, w := range words {
		if len(w) > maxWord || len(typed) > maxWord {
			continue
		}
		d := Distance(strings.ToLower(typed), strings.ToLower(w))
		if d <= allowed || len(typed) > 2 && strings.HasPrefix(w, typed) {
			best[w] = d
		}
	}
	found := make([]string, 0, len(best))
	for w := range best {
		found = append(found, w)
	}
	slices.SortFunc(found, func(a, b string) int {
		if d := best[a] - best[b]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return found[:min(len(found), most)]
}

// Meant is the end of an error that suggests words: "; did you mean a or b?", or "" without words.
func Meant(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(words, " or ") + "?"
}
