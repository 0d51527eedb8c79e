package mcpapi

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScore: a word counts where it stands alone, as if the text were cut into words.
func TestScore(t *testing.T) {
	for _, text := range []string{"", "a", "aa", "aa a", "a-aa", "aaa aa", "xa ay a", `{"name":"Größe 12"}`, "größe1 größe", "ß", "Ⅻ a\xff", "ÀÀ à"} {
		for _, word := range []string{"a", "aa", "größe", "12", "ß", "à", "name"} {
			want := 0
			if slices.Contains(words(text), word) {
				want = 100
			}
			require.Equal(t, want, score([]byte(text), []string{word}), "%q in %q", word, text)
		}
	}
	require.Equal(t, 50, score([]byte("A b"), words("a c")))
	require.Equal(t, []string{"a", "b"}, words("b A, a"))
}
