// Package peer has the commands that show what the running peer knows, and that change the peer itself.
package peer

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
)

// Status makes the command status.
func Status(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "status", Short: "Describe the running peer", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		rows := [][]string{
			{"peer", s.PeerID},
			{"name", term.OrDash(s.Name)},
			{"network", networkText(s)},
			{"profile", s.Profile},
			{"mode", s.Mode},
			{"ready", strconv.FormatBool(s.Ready)},
			{"version", s.Version},
			{"uptime", (time.Duration(s.UptimeSeconds) * time.Second).String()},
			{"peers", fmt.Sprintf("%d connected, %d in the routing table", s.Peers, s.RoutingTable)},
			{"reach", s.Reach.Text},
			{"records", fmt.Sprintf("%d own, %d kept", s.RecordsOwn, s.RecordsKept)},
			{"listen", term.OrDash(strings.Join(s.Listen, " "))},
		}
		if len(s.RecordsUnstored) > 0 {
			rows = append(rows, []string{"not stored", strings.Join(s.RecordsUnstored, " ")})
		}
		if s.RecordsAnnouncing > 0 {
			rows = append(rows, []string{"announcing", fmt.Sprintf("%d changes of own records; complete answers may lack them", s.RecordsAnnouncing)})
		}
		if s.ClockOffset != nil {
			rows = append(rows, []string{"clock", term.Offset(*s.ClockOffset) + " against its keepers"})
		}
		if g := s.Group; g != nil {
			rows = append(rows, []string{"group", groupText(g)})
		}
		for _, c := range s.Conditions {
			rows = append(rows, []string{c.Name, c.Message + " (since " + c.Since.Local().Format(time.DateTime) + ")"})
		}
		return r.Print(term.Document{Value: s, Table: term.Pairs(rows)})
	})
}

// networkText names the network of a peer.
func networkText(s discovery.Status) string {
	if s.NetworkClosed {
		return s.Network + " (closed)"
	}
	return s.Network
}

// groupText describes the group in one line.
func groupText(g *discovery.Group) string {
	text := g.Role
	if g.Leader != "" && g.Role != "leader" {
		text += ", led by " + term.Named(g.Leader, g.LeaderName)
	}
	if g.Tolerance != "" {
		text += ", survives: " + g.Tolerance
	}
	return text
}

// Command makes the command peer.
func Command(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "peer", Short: "List the peers of the network"}, peerList(con))
}

func peerList(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "ls", Short: "List the peers that the running peer is connected to", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		peers, err := c.Peers(ctx)
		if err != nil {
			return err
		}
		header := []string{"PEER", "LATENCY", "AGENT", "ADDRESSES"}
		return r.Print(term.List("peers", peers, header, func(p *discovery.PeerInfo) []string {
			return []string{p.ID, term.Millis(p.LatencyMs), term.OrDash(p.Agent), term.OrDash(strings.Join(p.Addrs, " "))}
		}))
	})
}
