package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/network/invite"
)

// keysFunc returns the keys of the network in a data directory.
type keysFunc func(dataDir string) ([]network.Key, error)

// joinFunc makes a data directory that of a peer of the inviting network.
type joinFunc func(dataDir string, i invite.Invitation) error

func inviteCommand(con *console, keys keysFunc, identity func(dataDir string) (string, error)) *cobra.Command {
	r := newRemote(con, &cobra.Command{
		Use: "invite", Short: "Print a line with which another machine joins the network", Args: noArgs,
		Long: "Print a line with which another machine joins the network of the running peer:\n" +
			"blackholed run --join LINE. It contains the name and the key of the network, and\n" +
			"addresses of the peer. With the key everybody may use the coordination group, so keep\n" +
			"the line secret. The command runs on the peer's machine and reads its data directory.",
	}, defaultTimeout)
	dataFlag(r.cmd, "data directory of the running peer")
	addresses := r.cmd.Flags().StringArray("address", nil, "multiaddr with /p2p/ID for the line (repeat; default: those of the peer)")
	return r.calls(func(ctx context.Context, c *client.Client, _ []string) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		dir := con.dataDir(r.cmd)
		if err := belongs(dir, s.PeerID, identity); err != nil {
			return err
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
			err = renameField(err, "--address")
		}
		if err != nil {
			return err
		}
		r.explainInvitation(i)
		return r.print(document{value: map[string]string{"invitation": text}, table: plain(text + "\n")})
	})
}

// belongs checks that a data directory is that of the running peer.
func belongs(dir, peerID string, identity func(dataDir string) (string, error)) error {
	file, err := exists(dir)
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
func (c *console) explainInvitation(i invite.Invitation) {
	if !slices.ContainsFunc(i.Addresses, func(a string) bool { return !loopback(a) }) {
		c.say("warning: the peer has addresses on this machine only, so the line works on this machine only (use --profile lan, or --address)")
	}
	if i.Key == nil {
		c.say("the network %s has no key: whoever joins it shares no secret", i.Name)
		return
	}
	c.say("the line contains the key of the network %s: whoever has it may join and use the coordination group", i.Name)
	if i.Closed {
		c.say("the network is closed: a peer that joins by the line closes its connections too")
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

// joinFlag adds --join to the command that runs a peer.
func joinFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("join", "", "invitation of another peer (`LINE` of "+name+" invite), or - to read it from standard input (environment "+joinVariable+"); the next start needs it no more")
}

// joinVariable has an invitation, for containers. It may stay set: a repeated join changes nothing.
const joinVariable = config.Prefix + "JOIN"

// invitation returns the invitation to join by, or "".
func (s *settings) invitation(cmd *cobra.Command, flag string) string {
	if !cmd.Flags().Changed("join") {
		flag, _ = s.con.env(joinVariable)
	}
	return strings.TrimSpace(flag)
}

// join reads an invitation and makes it part of the settings. It changes no file.
func (s *settings) join(line string) (invite.Invitation, error) {
	if line == "-" {
		text, err := s.con.readFile("--join", line, invite.MaxSize)
		if err != nil {
			return invite.Invitation{}, err
		}
		line = string(text)
	}
	i, err := invite.Parse(line)
	if err != nil {
		return i, fault.In("--join", err)
	}
	s.joined = &config.Joined{Name: i.Name, Profile: i.Profile, Bootstrap: i.Addresses, Closed: i.Closed}
	return i, nil
}
