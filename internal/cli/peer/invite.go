package peer

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// keysFunc returns the keys of the network in a data directory.
type keysFunc func(dataDir string) ([]identity.Key, error)

// JoinFunc makes a data directory that of a peer of the inviting network.
type JoinFunc func(dataDir string, i invite.Invitation) error

// Invite makes the command invite.
func Invite(con *term.Console, keys keysFunc, identity func(dataDir string) (string, error)) *cobra.Command {
	r := remote.New(con, &cobra.Command{
		Use: "invite", Short: "Print a line with which another machine joins the network", Args: command.NoArgs,
		Long: "Print a line with which another machine joins the network of the running peer:\n" +
			"blackholed run --join LINE. It contains the name and the key of the network, and\n" +
			"addresses of the peer. With the key everybody may use the coordination group, so keep\n" +
			"the line secret. The command runs on the peer's machine and reads its data directory.",
	}, remote.DefaultTimeout)
	settings.DataFlag(r.Cmd, "data directory of the running peer")
	addresses := r.Cmd.Flags().StringArray("address", nil, "multiaddr with /p2p/ID for the line (repeat; default: those of the peer)")
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		dir := settings.DataDir(con, r.Cmd)
		if err := belongs(dir, s.PeerID, identity); err != nil {
			set, _ := remote.Running(ctx, c) // optional: it needs the role admin
			if r.Cmd.Flags().Changed("data") || belongs(set["data"], s.PeerID, identity) != nil {
				return err
			}
			dir = set["data"]
		}
		held, err := keys(dir)
		if err != nil {
			return err
		}
		i := invite.Invitation{Name: network.Name(s.Network), Profile: s.Profile, Addresses: *addresses, Closed: s.NetworkClosed}
		if len(held) > 0 {
			i.Key = held[0]
		}
		if len(i.Addresses) == 0 {
			i.Addresses = inviting(s.Listen)
		}
		text, err := i.Text()
		if len(*addresses) > 0 {
			err = exit.Rename(err, "--address")
		}
		if err != nil {
			return err
		}
		explainInvitation(r.Console, i)
		return r.Print(term.Document{Value: map[string]string{"invitation": text}, Table: term.Plain(text + "\n")})
	})
}

// belongs checks that a data directory is that of the running peer.
func belongs(dir, peerID string, identity func(dataDir string) (string, error)) error {
	file, err := settings.Exists(dir)
	if err != nil {
		return err
	}
	if file {
		id, err := identity(dir)
		if err != nil {
			return err
		}
		if id == peerID {
			return nil
		}
	}
	return fault.Invalidf("--data", dir, "%s is not the data directory of the running peer %s: name the directory that it runs with", dir, peerID)
}

// explainInvitation tells on standard error what the line is worth.
func explainInvitation(c *term.Console, i invite.Invitation) {
	if !slices.ContainsFunc(i.Addresses, func(a string) bool { return !loopback(a) }) {
		c.Say("warning: the peer has addresses on this machine only, so the line works on this machine only (use another --profile or --listen, or --address)")
	}
	if i.Key == nil {
		c.Say("the network %s has no key: whoever joins it shares no secret", i.Name)
		return
	}
	c.Say("the line contains the key of the network %s: whoever has it may join and use the coordination group", i.Name)
	if i.Closed {
		c.Say("the network is closed: a peer that joins by the line closes its connections too")
	}
}

// inviting chooses the addresses of a peer for an invitation: those beyond this machine, relayed ones last.
func inviting(listen []string) []string {
	chosen := slices.DeleteFunc(slices.Clone(listen), loopback)
	if len(chosen) == 0 {
		chosen = slices.Clone(listen)
	}
	slices.SortStableFunc(chosen, func(a, b string) int { return strings.Count(a, "/p2p/") - strings.Count(b, "/p2p/") })
	return chosen[:min(len(chosen), invite.MaxAddresses)]
}

func loopback(a string) bool {
	return strings.HasPrefix(a, "/ip4/127.") || strings.HasPrefix(a, "/ip6/::1/")
}

// JoinFlag adds --join to the command that runs a peer.
func JoinFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("join", "", "invitation of another peer (`LINE` of "+command.Program+" invite), or - to read it from standard input (environment "+environ.Join+"); the next start needs it no more")
}

// Invitation returns the invitation to join by, or "".
func Invitation(con *term.Console, cmd *cobra.Command, flag string) string {
	if !cmd.Flags().Changed("join") {
		flag, _ = con.Env(environ.Join)
	}
	return strings.TrimSpace(flag)
}

// ReadInvitation reads an invitation and makes it part of the settings. It changes no file.
func ReadInvitation(s *settings.Settings, line string) (invite.Invitation, error) {
	if line == "-" {
		text, err := file.Read(s.Con, "--join", line, invite.MaxSize)
		if err != nil {
			return invite.Invitation{}, err
		}
		line = string(text)
	}
	i, err := invite.Parse(line)
	if err != nil {
		return i, fault.In("--join", err)
	}
	s.Joined = &config.Joined{Name: i.Name, Profile: i.Profile, Bootstrap: i.Addresses, Closed: i.Closed}
	return i, nil
}
