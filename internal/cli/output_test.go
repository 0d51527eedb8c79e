package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/platform/config"
)

// TestSettingsFile expects the file to change nothing, and to set every default after all
// settings are uncommented.
func TestSettingsFile(t *testing.T) {
	load := func(text string) (config.Config, config.Origin) {
		path := filepath.Join(t.TempDir(), settings.ConfigFile)
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
	path := filepath.Join(t.TempDir(), settings.ConfigFile)
	require.NoError(t, os.WriteFile(path, []byte("profile: lan\n"), 0o600))
	created, err := createFile(path, settingsFile("d"))
	require.NoError(t, err)
	require.False(t, created)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "profile: lan\n", string(data))
}
