package term

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextWidth(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "Suva": 4, "東京": 4, "서울": 4, "e\u0301": 1, "🚀": 2, "☎\ufe0e": 1, "ｱ": 1, "Ａ": 2, "…": 1, "—": 1,
	} {
		require.Equal(t, want, textWidth(text), "%q", text)
	}
}

// TestWideCells: columns stay aligned, and no line is wider than the screen.
func TestWideCells(t *testing.T) {
	g := Table([]string{"NAME", "CITY", "TEXT"}, [][]string{
		{"a", "東京", "short"},
		{"🚀🚀", "Suva", strings.Repeat("東京 ", 20)},
		{strings.Repeat("北", 40), "Cafe\u0301", strings.Repeat("京", 60)},
	})
	const columns = 60
	text := g.On(Screen{Columns: columns})
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for _, line := range lines {
		require.LessOrEqual(t, textWidth(line), columns, line)
	}
	for word, above := range map[string]string{"Suva": "CITY", "short": "TEXT", "Cafe": "CITY"} {
		before, _, found := strings.Cut(text, word)
		require.True(t, found, word)
		before = before[strings.LastIndex(before, "\n")+1:]
		require.Equal(t, strings.Index(lines[0], above), textWidth(before), "%s is under %s:\n%s", word, above, text)
	}
	require.Contains(t, lines[1], "a ")
	require.Equal(t, 40, strings.Count(text, "北"), "nor of another one")
	require.Equal(t, 1+20+60, strings.Count(text, "京"), "no character of the last column is lost")
}

func TestWrapWide(t *testing.T) {
	require.Equal(t, []string{"東京", "大阪"}, wrap("東京大阪", 4))
	require.Equal(t, []string{"東京", "大阪"}, wrap("東京 大阪", 5))
	require.Equal(t, []string{"東", "京"}, wrap("東京", 3), "half a character fits nowhere")
	require.Equal(t, []string{"東", "京"}, wrap("東京", 1), "and a column that is too narrow ends all the same")
	require.Equal(t, []string{"e\u0301", "e\u0301"}, wrap("e\u0301e\u0301", 1), "a mark stays with its character")
	require.Equal(t, "東…", CutTo("東京大阪", 4))
	require.Equal(t, "東京", CutTo("東京", 4))
}
