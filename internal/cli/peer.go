package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
)

func statusCommand(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "status", Short: "Describe the running peer", Args: noArgs}, defaultTimeout)
	return r.calls(func(ctx context.Context, c *client.Client, _ []string) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		rows := [][]string{
			{"peer", s.PeerID},
			{"name", orDash(s.Name)},
			{"network", networkText(s)},
			{"profile", s.Profile},
			{"mode", s.Mode},
			{"ready", strconv.FormatBool(s.Ready)},
			{"version", s.Version},
			{"uptime", (time.Duration(s.UptimeSeconds) * time.Second).String()},
			{"peers", fmt.Sprintf("%d connected, %d in the routing table", s.Peers, s.RoutingTable)},
			{"reach", s.Reach.Text},
			{"records", fmt.Sprintf("%d own, %d kept", s.RecordsOwn, s.RecordsKept)},
			{"listen", orDash(strings.Join(s.Listen, " "))},
		}
		if len(s.RecordsUnstored) > 0 {
			rows = append(rows, []string{"not stored", strings.Join(s.RecordsUnstored, " ")})
		}
		if s.RecordsAnnouncing > 0 {
			rows = append(rows, []string{"announcing", fmt.Sprintf("%d changes of own records; complete answers may lack them", s.RecordsAnnouncing)})
		}
		if s.ClockOffset != nil {
			rows = append(rows, []string{"clock", offsetText(*s.ClockOffset) + " against its keepers"})
		}
		if g := s.Group; g != nil {
			rows = append(rows, []string{"group", groupText(g)})
		}
		for _, c := range s.Conditions {
			rows = append(rows, []string{c.Name, c.Message + " (since " + c.Since.Local().Format(time.DateTime) + ")"})
		}
		return r.print(document{value: s, table: pairs(rows)})
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
		text += ", led by " + withName(g.Leader, g.LeaderName)
	}
	if g.Tolerance != "" {
		text += ", survives: " + g.Tolerance
	}
	return text
}

// withName shows a peer's id with the name that it gives itself.
func withName(id, name string) string {
	if id == "" || name == "" {
		return orDash(id)
	}
	return id + " (" + name + ")"
}

// offsetText shows a difference of clocks in tenths of a second.
func offsetText(seconds float64) string {
	if math.Abs(seconds) < 0.05 {
		return "0.0 s"
	}
	return fmt.Sprintf("%+.1f s", seconds)
}

func peerCommand(con *console) *cobra.Command {
	return parent(&cobra.Command{Use: "peer", Short: "List the peers of the network"}, peerList(con))
}

func peerList(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "ls", Short: "List the peers that the running peer is connected to", Args: noArgs}, defaultTimeout)
	return r.calls(func(ctx context.Context, c *client.Client, _ []string) error {
		peers, err := c.Peers(ctx)
		if err != nil {
			return err
		}
		header := []string{"PEER", "LATENCY", "AGENT", "ADDRESSES"}
		return r.print(listDocument("peers", peers, header, func(p *discovery.PeerInfo) []string {
			return []string{p.ID, millis(p.LatencyMs), orDash(p.Agent), orDash(strings.Join(p.Addrs, " "))}
		}))
	})
}

// Build describes the program: the commit and its date, "" if unknown, and the system that it runs on.
type Build struct{ Revision, Time, Platform string }

// versionText is the version for people: "blackholed v1.2.0, commit 1a2b3c4d5e6f of 2026-03-01T00:00:00Z, go1.26 linux/amd64".
func versionText(version string, b Build) string {
	text := name + " " + version
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
	show := root.Flags().BoolP("version", "v", false, "version for "+name)
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !*show {
			return help(cmd, args)
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
}

func versionCommand(con *console, version string, b Build) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the version of this program", Args: noArgs}
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		return f.print(con, document{
			value: map[string]string{"version": version, "revision": b.Revision, "time": b.Time, "platform": b.Platform},
			table: plain(versionText(version, b)),
		})
	}
	return cmd
}

// millis shows milliseconds. Zero means unknown.
func millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}

// orDash shows a missing value as "-".
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
