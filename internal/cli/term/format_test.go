package term

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// values draws JSON values.
func values(depth int) *rapid.Generator[any] {
	text := rapid.OneOf(
		rapid.String(),
		rapid.SampledFrom([]string{"", "NO", "yes", "null", "~", "1.0", "1_000", "0x1f", "1:30", "2026-03-01", "a: b", "# c", "- d", "\x1b[2J", "\u202e", "x\ny", " z ", "\U000e0001"}),
	)
	kinds := []*rapid.Generator[any]{
		text.AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
		rapid.Float64().AsAny(), rapid.Int32().AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.SliceOfN(values(depth-1), 0, 4).AsAny(), rapid.MapOfN(text, values(depth-1), 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

// TestFormatsSayTheSame expects the same content in YAML and JSON, and no control characters
// for a terminal.
func TestFormatsSayTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := values(3).Draw(t, "value")
		inJSON, err := JSON(v, "  ")
		require.NoError(t, err)
		inYAML, err := YAML(v)
		require.NoError(t, err)
		var fromJSON, fromYAML any
		require.NoError(t, json.Unmarshal(inJSON, &fromJSON))
		require.NoError(t, yaml.Unmarshal(inYAML, &fromYAML), "%s", inYAML)
		again, err := json.Marshal(fromYAML)
		require.NoError(t, err)
		require.JSONEq(t, string(inJSON), string(again), "%s", inYAML)
		for _, r := range string(inJSON) + string(inYAML) {
			require.True(t, r == '\n' || unicode.IsGraphic(r), "%q", r)
		}
	})
}

func TestYAMLKeepsOrder(t *testing.T) {
	got, err := YAML(struct {
		B int    `json:"b"`
		A string `json:"a"`
	}{1, "NO"})
	require.NoError(t, err)
	require.Equal(t, "b: 1\na: \"NO\"\n", string(got))
}
