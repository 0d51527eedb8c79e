package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/config"
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
		inJSON, err := marshalJSON(v, "  ")
		require.NoError(t, err)
		inYAML, err := marshalYAML(v)
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
	got, err := marshalYAML(struct {
		B int    `json:"b"`
		A string `json:"a"`
	}{1, "NO"})
	require.NoError(t, err)
	require.Equal(t, "b: 1\na: \"NO\"\n", string(got))
}

// TestSettingsFile expects the file to change nothing, and to set every default after all
// settings are uncommented.
func TestSettingsFile(t *testing.T) {
	load := func(text string) (config.Config, config.Origin) {
		path := filepath.Join(t.TempDir(), configFile)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, origin, err := config.Load(config.Source{File: path})
		require.NoError(t, err, text)
		return c, origin
	}
	c, _ := load(settingsFile(config.Default().Data))
	require.Equal(t, config.Default(), c)

	c, origin := load(regexp.MustCompile(`(?m)^#( *[a-z_]+:( |$))`).ReplaceAllString(settingsFile(config.Default().Data), "$1"))
	for _, key := range config.Keys() {
		require.Equal(t, config.Default().Value(key), c.Value(key), key)
		require.True(t, strings.HasPrefix(origin[key], "file "), "%s is not in the file", key)
	}
	for _, s := range config.Settings() {
		require.NotEmpty(t, s.Help, s.Key)
	}
}

func TestInitKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), configFile)
	require.NoError(t, os.WriteFile(path, []byte("profile: lan\n"), 0o600))
	created, err := createFile(path, settingsFile("d"))
	require.NoError(t, err)
	require.False(t, created)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "profile: lan\n", string(data))
}

func FuzzParseOffers(f *testing.F) {
	for _, path := range []string{"one.yaml", "batch.json", "lines.ndjson", "wrong.json", "empty.yaml"} {
		data, err := os.ReadFile(filepath.Join("testdata", path))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("{id: x"))
	f.Add([]byte("[[{}]]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		offers, err := parseOffers(data)
		if err != nil {
			return
		}
		for _, o := range offers {
			require.NoError(t, o.Validate())
		}
	})
}
