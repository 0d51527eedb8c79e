package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// FuzzFile expects a settings file to load, or to fail with an Invalid error.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		specified, manifest, "auth: {tokens: [{token: a, role: admin, services: [x]}]}", "agent: {checks: {scripts: {a: [/b]}}}",
		"auth:\n", "auth: 3", "auth: [1]", "{1: 2}", "auth.token: x", "data: ${", "data: '${A}$${B'", "auth: {tokens: [{1: 2}]}", "agent: {checks: {scripts: {a: null}}}",
		"auth: {jwt: null, tokens: null}", "log: {level: {x: 1}}", "a: &a [*a]", "? [x]\n: y",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "c.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		c, _, err := config.Load(config.Source{File: path, Environ: []string{"A=b", "MANIFEST_AUTH_TOKEN=" + canary}})
		if err != nil {
			require.ErrorIs(t, err, fault.Invalid)
			require.NotContains(t, err.Error(), canary)
			return
		}
		require.NoError(t, c.Validate())
		for _, key := range config.Keys() {
			require.NotContains(t, c.Value(key), canary)
		}
	})
}
