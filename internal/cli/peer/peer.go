// Package peer has the commands that show what the running peer knows, and that change the peer itself.
package peer

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Status makes the command status.
func Status(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "status", Short: "Describe the running peer", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		return r.Print(statusDocument(s))
	})
}

// statusDocument describes a peer.
func statusDocument(s discovery.Status) term.Document {
	rows := [][]string{
		{"name", term.OrDash(s.Name)},
		{"peer", s.PeerID},
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
	if s.IdentityNew {
		rows = append(rows, []string{"identity", "made at this start: the data directory had none"})
	}
	if len(s.RecordsUnstored) > 0 {
		rows = append(rows, []string{"not stored", strings.Join(s.RecordsUnstored, " ")})
	}
	if s.RecordsAnnouncing > 0 {
		rows = append(rows, []string{"announcing", fault.Counted(s.RecordsAnnouncing, "change") + " of own records; complete answers may lack them"})
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
	return term.Document{Value: s, Table: term.Pairs(rows)}
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
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		peers, err := c.Peers(ctx)
		if err != nil {
			return err
		}
		header := []string{"NAME", "PEER", "LATENCY", "AGENT", "ADDRESSES"}
		return r.Print(term.List("peers", peers, header, func(p *discovery.PeerInfo) []string {
			return []string{term.OrDash(p.Name), p.ID, term.Millis(p.LatencyMs), term.OrDash(p.Agent), term.OrDash(strings.Join(p.Addrs, " "))}
		}))
	})
}

// LogLevel makes the command log-level.
func LogLevel(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "log-level LEVEL", Short: "Change the level of the peer's log", Args: command.OneArg("LEVEL"),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		Long: "Change the level of the running peer's log to debug, info, warn or error, until the peer stops. The setting\n" +
			"log.level holds at the next start. Needs the role admin.",
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		before, err := c.SetLogLevel(ctx, args[0])
		if err != nil {
			return exit.Rename(err, "LEVEL")
		}
		v := map[string]string{"level": args[0], "previous": before}
		return r.Print(term.Document{Value: v, Table: term.Pairs([][]string{{"level", args[0]}, {"before", before}})})
	})
}

// UI makes the command ui.
func UI(con *term.Console) *cobra.Command {
	var open bool
	r := remote.New(con, &cobra.Command{
		Use: "ui", Short: "Show the address of the peer's web page", Args: command.NoArgs,
		Long: "Show the address of the peer's web page.\n\n" +
			"At a peer with authentication the link has a code: the page then acts for you. The code works\n" +
			"once, within two minutes. A session ends after 12 hours, or with your credentials.\n\n" +
			"--open passes the link to the browser as an argument, which other users of this host can see.",
		Example: "  blackholed ui\n  blackholed ui --open\n  blackholed ui --token-file admin.token",
	}, remote.DefaultTimeout)
	r.Cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		link, err := c.Page(ctx)
		if err != nil {
			return err
		}
		if !link.Expires.IsZero() {
			con.Say("this link works once, until %s", link.Expires.Local().Format(time.TimeOnly))
		}
		if open {
			if err := openInBrowser(link.URL); err != nil {
				con.Say("cannot open a browser: %s", exit.Message(err))
			}
		}
		return r.Print(term.Document{Value: link, Table: term.Plain(term.Clean(link.URL) + "\n")})
	})
}

// openInBrowser starts the browser of the system. A peer elsewhere must not make it open anything but a page.
func openInBrowser(url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return fault.New("", fault.Invalid, "%q is no address of a page", url)
	}
	program, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		program = "open"
	case "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	browser := exec.Command(program, args...) // it outlives this program
	if err := browser.Start(); err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	return browser.Process.Release()
}
