package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestInvisibleCharacters: each of them can make one name look like another.
func TestInvisibleCharacters(t *testing.T) {
	var refused []rune
	for _, span := range [][2]rune{{0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x2064}, {0x2066, 0x2069}, {0xad, 0xad}, {0xfeff, 0xfeff}, {0x115f, 0x1160}, {0x3164, 0x3164}, {0xffa0, 0xffa0}, {0x2800, 0x2800}} {
		for r := span[0]; r <= span[1]; r++ {
			refused = append(refused, r)
		}
	}
	for _, r := range refused {
		err := fault.Text("name", "é"+string(r)+"evil", 100)
		require.ErrorIs(t, err, fault.Invalid, "%U", r)
		require.Equal(t, "name", fault.FieldOf(err))
	}
	for _, text := range []string{"\ufe0fname", "☁\ufe0f\ufe0f", "n\ufe00\U000e0101\U000e0102"} {
		require.ErrorIs(t, fault.Text("name", text, 100), fault.Invalid, "%q", text) // a message in selectors
	}
	for _, text := range []string{"", "plain", "é", "日本語", "العربية", "naïve café 🚀 ☁️", "한국어"} {
		require.NoError(t, fault.Text("name", text, 100), text)
	}
}
