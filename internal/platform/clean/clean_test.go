package clean_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestText(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"plain":                   {"ready, 3 tools", "ready, 3 tools"},
		"other scripts":           {"naïve 日本語 العربية 한국어 ☁️ 🚀", "naïve 日本語 العربية 한국어 ☁️ 🚀"},
		"at the bound":            {strings.Repeat("a", 64), strings.Repeat("a", 64)},
		"a character at the cut":  {strings.Repeat("a", 60) + "éééé", strings.Repeat("a", 60) + "…"},
		"above the bound":         {strings.Repeat("a", 65), strings.Repeat("a", 61) + "…"},
		"no UTF-8":                {"a\xffb", "a\ufffdb"},
		"half a character":        {"a\xc3", "a\ufffd"},
		"half of UTF-16":          {"a\xed\xa0\x80b", "a\ufffd\ufffd\ufffdb"},
		"an escape code":          {"\x1b[2Jgone\x07", "\ufffd[2Jgone\ufffd"},
		"C1":                      {"a\u009b2Jb", "a\ufffd2Jb"},
		"DEL and NUL":             {"a\x7f\x00b", "a\ufffd\ufffdb"},
		"lines":                   {"a\nb\r\nc\td\u2028e\u0085f", "a b  c d e f"},
		"directions":              {"a\u202eb\u2066c\u200fd\u061ce", "a\ufffdb\ufffdc\ufffdd\ufffde"},
		"zero width":              {"a\u200bb\ufeffc\u2060d\u00ade", "a\ufffdb\ufffdc\ufffdd\ufffde"},
		"tags":                    {"a\U000e0041\U000e0042", "a\ufffd\ufffd"},
		"fillers":                 {"a\u3164b\u2800c", "a\ufffdb\ufffdc"},
		"selectors without a use": {"☁\ufe0f\ufe0fa\U000e0100", "☁\ufe0f\ufffda\U000e0100"},
		"text after a selector":   {"☁\ufe0f b\n", "☁\ufe0f b "},
		"a selector first":        {"\ufe0fa", "\ufffda"},
	} {
		require.Equal(t, tc.want, clean.Text(tc.in, 64), name)
	}
}

// TestTextAlways: whatever comes, the result has the bound and nothing that fault.Text refuses.
func TestTextAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "text") {
			in = rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("\n\x1b\u202e\u200b\ufe0f\U000e0100é")))).Draw(t, "in")
		}
		most := rapid.IntRange(3, 60).Draw(t, "most")
		out := clean.Text(in, most)
		require.NoError(t, fault.Text("", out, most), "%q", out)
		require.True(t, utf8.ValidString(out))
		require.Equal(t, out, clean.Text(out, most))
		if fault.Text("", in, most) == nil {
			require.Equal(t, in, out)
		}
	})
}

// TestLines: line breaks and tabs stay, and nothing else that Text takes away.
func TestLines(t *testing.T) {
	require.Equal(t, "a\n\tb \n\ufffd[2J\n", clean.Lines("a\n\tb\r\n\x1b[2J\n", 64))
	require.Equal(t, "a\n\ufffdb", clean.Lines("a\n\ufe0fb", 64), "a selector has nothing to select in its line")
	require.Equal(t, "a\n…", clean.Lines("a\nééé", 6))
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("\n\t\r\x1b\u202e\ufe0f")))).Draw(t, "in")
		most := rapid.IntRange(3, 60).Draw(t, "most")
		out := clean.Lines(in, most)
		require.Equal(t, out, clean.Lines(out, most))
		for line := range strings.Lines(strings.ReplaceAll(out, "\t", "\n")) {
			require.NoError(t, fault.Text("", strings.TrimSuffix(line, "\n"), most))
		}
	})
}
