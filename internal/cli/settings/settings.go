// Package settings loads the settings of a peer on this machine: its data directory, settings file, flags and
// environment.
package settings

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ConfigFile is the default settings file in a data directory.
const ConfigFile = "blackhole.yaml"

// Settings are the flags of commands that need a peer's settings.
type Settings struct {
	Con    *term.Console
	File   string
	Joined *config.Joined // of --join; nil: without
}

// settingKeys are the settings with a flag of the same name; see config.Source.
func settingKeys() []string {
	return []string{"profile", "network", "name", "data", "listen", "bootstrap", "announce", "leaf", "expect", "http", "grpc", "dns"}
}

// ListenFlags are the flags of addresses at which a peer listens.
func ListenFlags() []string { return []string{"listen", "http", "grpc", "dns"} }

// New adds the flags of all settings that have one.
func New(con *term.Console, cmd *cobra.Command) *Settings {
	s, f, d := &Settings{Con: con}, cmd.Flags(), config.Default()
	f.StringVar(&s.File, "config", "", "settings file (default DATA/"+ConfigFile+" if it exists)")
	f.String("profile", "", "dev, lan or public (default "+d.Profile+")")
	f.String("network", "", "name of the network: lower-case letters, digits, hyphens (default: the profile's: dev, lan or main)")
	f.String("name", "", "name shown beside this peer's id; it proves nothing (default: the host's)")
	DataFlag(cmd, "data directory, with identity and databases")
	f.StringArray("listen", nil, "multiaddr to listen on (repeat; default: the profile's)")
	f.StringArray("bootstrap", nil, "multiaddr of a peer to connect to at the start, with /p2p/ID or a TCP address without (repeat)")
	f.StringArray("announce", nil, "multiaddr at which others can connect: a forwarded port, 1:1 NAT (repeat)")
	f.String("leaf", "", "dial out only and keep nothing for others; needs --bootstrap (--leaf is --leaf=on; default "+d.Leaf+")")
	f.Lookup("leaf").NoOptDefVal = "on"
	f.Int("expect", 0, "peers that begin the network together, with its key: the lowest of so many that see each other founds the group")
	f.String("http", "", "address of the HTTP API, or "+config.Off+" (default "+d.HTTP+")")
	f.String("grpc", "", "address of the gRPC API, or "+config.Off+" (default "+d.GRPC+")")
	f.String("dns", "", "address of the name server, or "+config.Off+" (default "+d.DNS+")")
	command.Complete(cmd, "profile", "dev", "lan", "public")
	return s
}

// Load merges defaults, file, environment and the flags that were set.
func (s *Settings) Load(cmd *cobra.Command) (config.Config, config.Origin, error) {
	src := config.Source{File: s.File, Environ: s.Con.Environ, Flags: map[string]any{}, Joined: s.Joined, Data: HomeDir(s.Con)}
	for _, key := range settingKeys() {
		flag := cmd.Flags().Lookup(key)
		if flag == nil || !flag.Changed {
			continue
		}
		src.Flags[key] = flag.Value.String()
		if list, ok := flag.Value.(interface{ GetSlice() []string }); ok {
			src.Flags[key] = list.GetSlice()
		}
	}
	if src.File == "" {
		file, err := fileIn(DataDir(s.Con, cmd))
		if err != nil {
			return config.Config{}, nil, err
		}
		src.File = file
	}
	return config.Load(src)
}

// fileIn returns the settings file of a data directory, or "" for none.
func fileIn(dir string) (string, error) {
	path := filepath.Join(dir, ConfigFile)
	if there, err := Exists(path); err != nil || !there {
		return "", err
	}
	return path, nil
}

// Exists reports whether a file or directory exists.
func Exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Invalidf("config", path, "%w", err)
	}
	return true, nil
}

// DataFlag adds --data. what describes the directory.
func DataFlag(cmd *cobra.Command, what string) {
	cmd.Flags().String("data", "", what+" (default: this user's, see "+command.Program+" config show)")
}

// DataDir is the data directory by flag, environment or default: the settings file lies in it.
func DataDir(c *term.Console, cmd *cobra.Command) string {
	dir, _ := c.Env(config.Prefix + "DATA")
	if flag := cmd.Flags().Lookup("data"); flag.Changed {
		dir = flag.Value.String()
	} else if dir == "" {
		dir = HomeDir(c)
	}
	home, _ := c.Env("HOME")
	return config.Expand(dir, home)
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
