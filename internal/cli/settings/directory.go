package settings

import (
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
)

// DataFlag adds --data. what describes the directory.
func DataFlag(cmd *cobra.Command, what string) {
	cmd.Flags().String("data", "", what+" (default: this user's, see "+command.Program+" config show)")
}

// DataDir is the data directory by flag, environment or default: the settings file lies in it.
func DataDir(c *term.Console, cmd *cobra.Command) string {
	if flag := cmd.Flags().Lookup("data"); flag.Changed {
		return flag.Value.String()
	}
	if dir, ok := c.Env(config.Prefix + "DATA"); ok && dir != "" {
		return dir
	}
	return HomeDir(c)
}

// HomeDir is the data directory of a user who names none.
func HomeDir(c *term.Console) string {
	return stateDir(runtime.GOOS, c.Superuser, func(variable string) string {
		value, _ := c.Env(variable)
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
		return filepath.Join(env("XDG_STATE_HOME"), command.Program)
	case goos == "windows" && env("LocalAppData") != "":
		return filepath.Join(env("LocalAppData"), command.Program)
	case goos == "windows", !superuser && home == "":
		return config.Default().Data
	case goos == "darwin" && superuser:
		return "/Library/Application Support/" + command.Program
	case goos == "darwin":
		return filepath.Join(home, "Library", "Application Support", command.Program)
	case superuser:
		return "/var/lib/" + command.Program
	default:
		return filepath.Join(home, ".local", "state", command.Program)
	}
}
