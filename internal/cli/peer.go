package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
)

func (a App) statusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Describe the running peer", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			s, err := c.Status(ctx)
			if err != nil {
				return err
			}
			return r.print(document{value: s, table: pairs([][]string{
				{"peer", s.PeerID},
				{"profile", s.Profile},
				{"ready", strconv.FormatBool(s.Ready)},
				{"version", s.Version},
				{"uptime", seconds(s.UptimeSeconds)},
				{"peers", fmt.Sprintf("%d connected, %d in the routing table", s.Peers, s.RoutingTable)},
				{"records", fmt.Sprintf("%d own, %d kept", s.RecordsOwn, s.RecordsKept)},
				{"listen", orDash(strings.Join(s.Listen, " "))},
			})})
		})
	}
	return cmd
}

func (a App) peersCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "peers", Short: "List the peers that the running peer is connected to", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			peers, err := c.Peers(ctx)
			if err != nil {
				return err
			}
			rows := make([][]string, len(peers))
			for i, p := range peers {
				rows[i] = []string{p.ID, millis(p.LatencyMs), orDash(p.Agent), orDash(strings.Join(p.Addrs, " "))}
			}
			return r.print(document{
				value: map[string]any{"peers": peers}, items: itemsOf(peers),
				table: table([]string{"PEER", "LATENCY", "AGENT", "ADDRESSES"}, rows),
			})
		})
	}
	return cmd
}

// seconds shows a duration to the second.
func seconds(s float64) string {
	return (time.Duration(s) * time.Second).String()
}

// millis shows milliseconds; 0 is unknown.
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

// orDash shows that there is no value.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
