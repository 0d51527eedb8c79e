package settings

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStateDir(t *testing.T) {
	type environment map[string]string
	all := environment{"STATE_DIRECTORY": "/srv/a:/srv/b", "XDG_STATE_HOME": "/state", "HOME": "/home/u", "LocalAppData": "/local"}
	for _, c := range []struct {
		goos      string
		superuser bool
		env       environment
		want      string
	}{
		{"linux", false, all, "/srv/a"},
		{"linux", true, all, "/srv/a"},
		{"linux", false, environment{"XDG_STATE_HOME": "/state", "HOME": "/home/u"}, "/state/blackholed"},
		{"linux", true, environment{"XDG_STATE_HOME": "/state", "HOME": "/root"}, "/state/blackholed"},
		{"linux", false, environment{"XDG_STATE_HOME": "state", "STATE_DIRECTORY": "b", "HOME": "/home/u"}, "/home/u/.local/state/blackholed"},
		{"freebsd", false, environment{"HOME": "/home/u"}, "/home/u/.local/state/blackholed"},
		{"linux", true, environment{"HOME": "/root"}, "/var/lib/blackholed"},
		{"linux", true, nil, "/var/lib/blackholed"},
		{"linux", false, nil, "blackhole-data"},
		{"darwin", false, environment{"HOME": "/Users/u"}, "/Users/u/Library/Application Support/blackholed"},
		{"darwin", true, environment{"HOME": "/var/root"}, "/Library/Application Support/blackholed"},
		{"windows", false, environment{"LocalAppData": "/local", "HOME": "/home/u"}, "/local/blackholed"},
		{"windows", false, nil, "blackhole-data"},
	} {
		got := stateDir(c.goos, c.superuser, func(variable string) string { return c.env[variable] })
		require.Equal(t, c.want, filepath.ToSlash(got), "%+v", c)
	}
}
