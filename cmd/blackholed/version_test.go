package main

import (
	"encoding/json"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole"
)

// TestVersionIsOne: program, SDKs and the table of support take their version from the file VERSION, with or without a tag.
func TestVersionIsOne(t *testing.T) {
	file, err := os.ReadFile(root + "/VERSION")
	require.NoError(t, err)
	want := strings.TrimSpace(string(file))
	require.Regexp(t, `^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$`, want)
	require.Equal(t, "v"+want, blackhole.Version())
	for module, says := range map[string]string{"v" + want: "v" + want, "(devel)": "v" + want + "-dev", "v0.0.0-2026": "v" + want + "-dev", "": "v" + want + "-dev"} {
		built := func() (*debug.BuildInfo, bool) { return &debug.BuildInfo{Main: debug.Module{Version: module}}, true }
		require.Equal(t, says, versionOf("v"+want, built), module)
	}
	require.Equal(t, "v"+want+"-dev", versionOf("v"+want, func() (*debug.BuildInfo, bool) { return nil, false }))
	require.Contains(t, succeeds(t, blackholed(t, nil, "--version")), "blackholed "+version())

	var npm struct{ Version string }
	text, err := os.ReadFile(root + "/sdk/typescript/package.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &npm))
	require.Equal(t, want, npm.Version, "sdk/typescript/package.json")
	text, err = os.ReadFile(root + "/sdk/python/pyproject.toml")
	require.NoError(t, err)
	require.Contains(t, string(text), "\nversion = \""+want+"\"\n", "sdk/python/pyproject.toml")
	text, err = os.ReadFile(root + "/SECURITY.md")
	require.NoError(t, err)
	minor := regexp.MustCompile(`^\d+\.\d+`).FindString(want)
	require.Contains(t, string(text), "| "+minor+" |", "SECURITY.md")
}
