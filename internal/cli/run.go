package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network/invite"
)

// configFile is the default settings file in a data directory.
const configFile = "blackhole.yaml"

// settings are the flags of commands that need a peer's settings.
type settings struct {
	con    *console
	file   string
	joined *config.Joined // of --join; nil: without
}

// settingKeys are the settings with a flag of the same name; see config.Source.
func settingKeys() []string {
	return []string{"profile", "network", "name", "data", "listen", "bootstrap", "announce", "leaf", "http", "grpc", "dns"}
}

// listenFlags are the flags of addresses at which a peer listens.
func listenFlags() []string { return []string{"listen", "http", "grpc", "dns"} }

func settingFlags(con *console, cmd *cobra.Command) *settings {
	s, f, d := &settings{con: con}, cmd.Flags(), config.Default()
	f.StringVar(&s.file, "config", "", "settings file (default DATA/"+configFile+" if it exists)")
	f.String("profile", "", "dev, lan or public (default "+d.Profile+")")
	f.String("network", "", "name of the network: lower-case letters, digits, hyphens (default: the profile's: dev, lan or main)")
	f.String("name", "", "name shown beside this peer's id; it proves nothing (default: the host's)")
	dataFlag(cmd, "data directory, with identity and databases")
	f.StringArray("listen", nil, "multiaddr to listen on (repeat; default: the profile's)")
	f.StringArray("bootstrap", nil, "multiaddr with /p2p/ID of a peer to connect to at the start (repeat)")
	f.StringArray("announce", nil, "multiaddr at which others can connect: a forwarded port, 1:1 NAT (repeat)")
	f.String("leaf", "", "dial out only and keep nothing for others; needs --bootstrap (--leaf is --leaf=on; default "+d.Leaf+")")
	f.Lookup("leaf").NoOptDefVal = "on"
	f.String("http", "", "address of the HTTP API, or "+config.Off+" (default "+d.HTTP+")")
	f.String("grpc", "", "address of the gRPC API, or "+config.Off+" (default "+d.GRPC+")")
	f.String("dns", "", "address of the name server, or "+config.Off+" (default "+d.DNS+")")
	complete(cmd, "profile", "dev", "lan", "public")
	return s
}

// load merges defaults, file, environment and the flags that were set.
func (s *settings) load(cmd *cobra.Command) (config.Config, config.Origin, error) {
	src := config.Source{File: s.file, Environ: s.con.environ, Flags: map[string]any{}, Joined: s.joined, Data: s.con.stateDir()}
	src.Environ = slices.DeleteFunc(slices.Clone(src.Environ), func(v string) bool { return strings.HasPrefix(v, joinVariable+"=") })
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
		file, err := fileIn(s.con.dataDir(cmd))
		if err != nil {
			return config.Config{}, nil, err
		}
		src.File = file
	}
	return config.Load(src)
}

// fileIn returns the settings file of a data directory, or "" for none.
func fileIn(dir string) (string, error) {
	path := filepath.Join(dir, configFile)
	if there, err := exists(path); err != nil || !there {
		return "", err
	}
	return path, nil
}

// exists reports whether a file or directory exists.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Invalidf("config", path, "%w", err)
	}
	return true, nil
}

// runFunc runs a peer until ctx ends, and returns nil then.
type runFunc func(ctx context.Context, c config.Config, r Runner) error

// Runner is the command that runs a peer.
type Runner struct {
	Stderr io.Writer
	Up     func(Up)                      // takes the peer's addresses once, when it is up
	Again  func() (config.Config, error) // reads the settings again
}

// Up has the addresses of a started peer.
type Up struct {
	Network, Profile string
	Page             string // address of the page, or off
	GRPC             string // address for commands, or off
}

// greet tells a person at a terminal what a peer that has started is good for. Other programs read the log.
func (c *console) greet(up Up) {
	if !c.terminal.Errors {
		return
	}
	flag := ""
	if up.GRPC != config.Default().GRPC {
		flag = " --grpc " + up.GRPC
	}
	c.say("a peer of network %s runs in profile %s until Ctrl-C; its page: %s", up.Network, up.Profile, up.Page)
	if up.GRPC != config.Off {
		c.say("try in another terminal: %[1]s status%[2]s; %[1]s ui%[2]s; %[1]s lock hold my-lock%[2]s -- date", name, flag)
	}
}

func runCommand(con *console, run runFunc, join joinFunc) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "Run a peer until interrupted", Args: noArgs,
		Long: "Run a peer until interrupted; a second interrupt ends it at once.\n\n" +
			"Flags override environment variables (BLACKHOLE_DISCOVERY_RECORD_TTL for the key\n" +
			"discovery.record_ttl), environment variables override the settings file, and the\n" +
			"settings file overrides the defaults. Profile dev finds peers on this machine, lan by\n" +
			"multicast on the local network, and public by --bootstrap. --join needs no other\n" +
			"setting: it brings name, key, profile and addresses of the network.",
	}
	s := settingFlags(con, cmd)
	line := joinFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var invited invite.Invitation
		if text := s.invitation(cmd, *line); text != "" || cmd.Flags().Changed("join") {
			var err error
			if invited, err = s.join(text); err != nil {
				return err
			}
		}
		c, _, err := s.load(cmd)
		if err != nil {
			return err
		}
		if s.joined != nil {
			if err := join(c.Data, invited); err != nil {
				return err
			}
			con.say("joined the network %s; the next start needs no --join", invited.Name)
		}
		err = run(cmd.Context(), c, Runner{Stderr: con.stderr, Up: con.greet, Again: func() (config.Config, error) {
			next, _, err := s.load(cmd)
			return next, err
		}})
		if cmd.Context().Err() != nil && fault.KindOf(err) == fault.Canceled {
			return nil // an interrupt is the regular end of a peer
		}
		return err
	}
	return cmd
}
