package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// configFile is the settings file in a data directory, read when no other is named.
const configFile = "blackhole.yaml"

// settings are the flags that a peer's settings come from.
type settings struct {
	app  App
	file string
}

// settingKeys are the settings that have a flag, which bears the key's name.
func settingKeys() []string {
	return []string{"profile", "data", "listen", "bootstrap", "http", "grpc", "dns"}
}

func (a App) settingFlags(cmd *cobra.Command) *settings {
	s, f, d := &settings{app: a}, cmd.Flags(), config.Default()
	f.StringVar(&s.file, "config", "", "settings file (default DATA/"+configFile+" if it is there)")
	f.String("profile", "", "dev, lan or public (default "+d.Profile+")")
	f.String("data", "", "directory of identity and databases (default "+d.Data+")")
	f.StringArray("listen", nil, "multiaddr to listen on (repeat; default: the profile's)")
	f.StringArray("bootstrap", nil, "multiaddr with /p2p/ID of a peer to join by (repeat)")
	f.String("http", "", "address of the HTTP API, or "+config.Off+" (default "+d.HTTP+")")
	f.String("grpc", "", "address of the gRPC API, or "+config.Off+" (default "+d.GRPC+")")
	f.String("dns", "", "address of the name server, or "+config.Off+" (default "+d.DNS+")")
	complete(cmd, "profile", "dev", "lan", "public")
	return s
}

// load merges defaults, file, environment and the flags that were given.
func (s *settings) load(cmd *cobra.Command) (config.Config, config.Origin, error) {
	src := config.Source{File: s.file, Environ: s.app.Environ, Flags: map[string]any{}}
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
		file, err := fileIn(s.app.dataDir(cmd))
		if err != nil {
			return config.Config{}, nil, err
		}
		src.File = file
	}
	return config.Load(src)
}

// dataDir is the data directory as far as it is known before any file was read.
func (a App) dataDir(cmd *cobra.Command) string {
	if flag := cmd.Flags().Lookup("data"); flag.Changed {
		return flag.Value.String()
	}
	if dir, ok := a.env(config.Prefix + "DATA"); ok && dir != "" {
		return dir
	}
	return config.Default().Data
}

// fileIn gives the settings file of a data directory, or "" when it has none.
func fileIn(dir string) (string, error) {
	path := filepath.Join(dir, configFile)
	switch _, err := os.Stat(path); {
	case err == nil:
		return path, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	default:
		return "", fault.Invalidf("config", path, "%w", err)
	}
}

func (a App) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "Run a peer until interrupted", Args: noArgs,
		Long: "Run a peer until interrupted; a second interrupt ends it at once.\n\n" +
			"Flags go over environment variables (BLACKHOLE_DISCOVERY_RECORD_TTL for the key\n" +
			"discovery.record_ttl), these over the settings file, this over the defaults.\n" +
			"Profiles: dev finds peers on this machine, lan by multicast on the local network,\n" +
			"public joins by --bootstrap.",
	}
	s := a.settingFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := s.load(cmd)
		if err != nil {
			return err
		}
		err = a.Run(cmd.Context(), c, a.Stderr)
		if cmd.Context().Err() != nil && fault.KindOf(err) == fault.Canceled {
			return nil // an interrupt is how a peer ends
		}
		return err
	}
	return cmd
}
