package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/peer"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
)

// runFunc runs a peer until ctx ends, and returns nil then.
type runFunc func(ctx context.Context, c config.Config, r Runner) error

// Runner is the command that runs a peer.
type Runner struct {
	Stderr io.Writer
	Joined string                        // network that the peer has joined by an invitation now; "": none
	Alone  bool                          // BLACKHOLE_JOIN is set and empty, and the settings name no other peer
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
func greet(c *term.Console, up Up) {
	if !c.Terminal.Errors {
		return
	}
	flag := ""
	if up.GRPC != config.Default().GRPC {
		flag = " --grpc " + up.GRPC
	}
	c.Say("a peer of network %s runs in profile %s until Ctrl-C; its page: %s", up.Network, up.Profile, up.Page)
	if up.GRPC != config.Off {
		c.Say("try in another terminal: %[1]s status%[2]s; %[1]s ui%[2]s; %[1]s lock hold my-lock%[2]s -- date", command.Program, flag)
	}
}

func runCommand(con *term.Console, run runFunc, join peer.JoinFunc) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "Run a peer until interrupted", Args: command.NoArgs,
		Long: "Run a peer until interrupted; a second interrupt ends it at once.\n\n" +
			"Flags override environment variables (BLACKHOLE_DISCOVERY_RECORD_TTL for the key\n" +
			"discovery.record_ttl), environment variables override the settings file, and the\n" +
			"settings file overrides the defaults. Profile lan finds peers by multicast on the local\n" +
			"network; public, and dev on this machine, by --bootstrap or --join. --join needs no other\n" +
			"setting: it brings name, key, profile and addresses of the network. Peers with --expect\n" +
			"and one key (network.key_file) begin a network together.",
	}
	s := settings.New(con, cmd)
	line := peer.JoinFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var invited invite.Invitation
		if text := peer.Invitation(con, cmd, *line); text != "" || cmd.Flags().Changed("join") {
			var err error
			if invited, err = peer.ReadInvitation(s, text); err != nil {
				return err
			}
		}
		c, _, err := s.Load(cmd)
		if err != nil {
			return err
		}
		if s.Joined != nil {
			if err := join(c.Data, invited); err != nil {
				return err
			}
		}
		if con.Terminal.Errors { // root has another directory than a user, and what the log says first is for programs
			con.Say("starting a peer; its data: %s", c.Data)
		}
		text, named := con.Env(environ.Join)
		alone := named && strings.TrimSpace(text) == "" && !cmd.Flags().Changed("join") && len(c.Bootstrap) == 0
		err = run(cmd.Context(), c, Runner{Stderr: con.Stderr, Joined: string(invited.Name), Alone: alone, Up: func(up Up) { greet(con, up) }, Again: func() (config.Config, error) {
			next, _, err := s.Load(cmd)
			return next, err
		}})
		if cmd.Context().Err() != nil && fault.KindOf(err) == fault.Canceled {
			return nil // an interrupt is the regular end of a peer
		}
		return err
	}
	return cmd
}

// Build describes the program: the commit and its date, "" if unknown, and the system that it runs on.
type Build struct{ Revision, Time, Platform string }

// versionText is the version for people: "blackholed v1.2.0, commit 1a2b3c4d5e6f of 2026-03-01T00:00:00Z, go1.26 linux/amd64".
func versionText(version string, b Build) string {
	text := command.Program + " " + version
	if b.Revision != "" {
		text += ", commit " + b.Revision[:min(len(b.Revision), 12)]
		if b.Time != "" {
			text += " of " + b.Time
		}
	}
	if b.Platform != "" {
		text += ", " + b.Platform
	}
	return text + "\n"
}

// versionFlag adds -v and --version. Cobra's own flag prints its text through text/template. The linker
// then keeps every exported method of every type, because templates call methods by name.
func versionFlag(root *cobra.Command, text string) {
	show := root.Flags().BoolP("version", "v", false, "version for "+command.Program)
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !*show {
			return help(cmd, args)
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
}

func versionCommand(con *term.Console, version string, b Build) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the version of this program", Args: command.NoArgs}
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		return f.Print(con, term.Document{
			Value: map[string]string{"version": version, "revision": b.Revision, "time": b.Time, "platform": b.Platform},
			Table: term.Plain(versionText(version, b)),
		})
	}
	return cmd
}
