package cli

import (
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
)

// dataFlag adds --data. what describes the directory.
func dataFlag(cmd *cobra.Command, what string) {
	cmd.Flags().String("data", "", what+" (default: this user's, see "+name+" config show)")
}

// dataDir is the data directory by flag, environment or default: the settings file lies in it.
func (c *console) dataDir(cmd *cobra.Command) string {
	if flag := cmd.Flags().Lookup("data"); flag.Changed {
		return flag.Value.String()
	}
	if dir, ok := c.env(config.Prefix + "DATA"); ok && dir != "" {
		return dir
	}
	return c.stateDir()
}

// stateDir is the data directory of a user who names none.
func (c *console) stateDir() string {
	return stateDir(runtime.GOOS, c.superuser, func(variable string) string {
		value, _ := c.env(variable)
		return value
	})
}

// stateDir follows the platform: systemd's directory for the service, the user's for state, or the system's for root. The working
// directory serves only a user without a home: it would give every shell an identity of its own.
func stateDir(goos string, superuser bool, env func(string) string) string {
	service, _, _ := strings.Cut(env("STATE_DIRECTORY"), ":")
	home := env("HOME")
	switch {
	case filepath.IsAbs(service):
		return service
	case filepath.IsAbs(env("XDG_STATE_HOME")): // the XDG Base Directory Specification ignores others
		return filepath.Join(env("XDG_STATE_HOME"), name)
	case goos == "windows" && env("LocalAppData") != "":
		return filepath.Join(env("LocalAppData"), name)
	case goos == "windows", !superuser && home == "":
		return config.Default().Data
	case goos == "darwin" && superuser:
		return "/Library/Application Support/" + name
	case goos == "darwin":
		return filepath.Join(home, "Library", "Application Support", name)
	case superuser:
		return "/var/lib/" + name
	default:
		return filepath.Join(home, ".local", "state", name)
	}
}
