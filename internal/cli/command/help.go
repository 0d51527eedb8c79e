package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
)

// peerFlags are the flags that name the peer to call and prove who calls. Help shows them apart from a command's own flags.
func peerFlags() []string {
	return []string{"grpc", "context", TimeoutFlag, "token", "token-file", "tls-ca", "cert", "key"}
}

// CallsPeer reports whether a command calls a peer, and so has the flags for it.
func CallsPeer(cmd *cobra.Command) bool { return cmd.Flags().Lookup(TimeoutFlag) != nil }

// PeerFlag reports whether a flag of a command names the peer to call or proves who calls.
func PeerFlag(cmd *cobra.Command, flag string) bool {
	return CallsPeer(cmd) && slices.Contains(peerFlags(), flag)
}

// Usage writes how to use a command, within the width of the terminal.
func Usage(c *term.Console, cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.UseLine() + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " COMMAND\n")
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + cmd.Example + "\n")
	}
	usageCommands(&b, cmd)
	own, peer := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if PeerFlag(cmd, f.Name) {
			peer.AddFlag(Displayed(f))
		} else {
			own.AddFlag(Displayed(f))
		}
	})
	for _, section := range []struct {
		title string
		flags *pflag.FlagSet
	}{{"Flags", own}, {"Flags for the call of the peer", peer}} {
		if section.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", section.title, section.flags.FlagUsagesWrapped(c.Screen().Columns))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help has more about a command.\n", cmd.CommandPath())
	}
	_, err := io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}

// usageCommands lists the commands below a command, by groups.
func usageCommands(b *strings.Builder, cmd *cobra.Command) {
	groups := cmd.Groups()
	if !slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.GroupID != "" }) {
		groups = nil
	}
	rest := "Commands:"
	if groups != nil {
		rest = "More:"
	}
	for _, group := range append(slices.Clone(groups), &cobra.Group{Title: rest}) {
		title := "\n" + group.Title + "\n"
		for _, child := range cmd.Commands() {
			if child.GroupID == group.ID && (child.IsAvailableCommand() || child.IsAdditionalHelpTopicCommand()) {
				fmt.Fprintf(b, "%s  %-*s  %s\n", title, child.NamePadding(), child.Name(), child.Short)
				title = ""
			}
		}
	}
}

// OutputTopic is a page of help without a command.
func OutputTopic() *cobra.Command {
	return &cobra.Command{
		Use: "output", Short: "About tables, formats and exit codes",
		Long: "At a terminal, tables fit its width: columns are left out, peer ids abbreviated, and\n" +
			"long cells cut. A pipe, or -o json, ndjson or yaml, gets everything. NO_COLOR turns\n" +
			"colours off. Results go to standard output, all else to standard error.\n\n" +
			"Exit codes:\n" + exit.Help(),
	}
}

// TimeoutFlag is a flag of exactly the commands that call a peer.
const TimeoutFlag = "timeout"

// Examples shows the use of the commands that have no example of their own, without the program's name. A test parses
// them all.
func Examples() map[string][]string {
	return map[string][]string{
		"init": {"init --data ~/peer"},
		"run": {
			"run", "run --profile lan --network office",
			"run --data peer-2 --http 127.0.0.1:8510 --grpc 127.0.0.1:8512 --dns 127.0.0.1:8610 --listen /ip4/127.0.0.1/tcp/4802",
			"run --join bh1_CgZvZmZpY2US...",
		},
		"invite":         {"invite", "invite --address /dns4/peer.example.org/tcp/4801/p2p/12D3KooW..."},
		"id":             {"id --data ~/peer"},
		"debug":          {"debug", "debug report.tar.gz --token-file admin.token"},
		"log-level":      {"log-level debug"},
		"context add":    {"context add office --grpc peer.example.org:8502 --token-file office.token --tls-ca system"},
		"context use":    {"context use office"},
		"context ls":     {"context ls"},
		"context rm":     {"context rm office"},
		"top":            {"top", "top --interval 500ms", "top -o json"},
		"events":         {"events --since 1h", "events -o ndjson"},
		"show":           {"show gpu-box-1", "show …pEUuqCVB", "show db/migrate -o json"},
		"status":         {"status", "status --grpc 127.0.0.1:8512", "status -o json"},
		"doctor":         {"doctor", "doctor --data ~/peer -o json"},
		"peer ls":        {"peer ls", "peer ls -o ndjson"},
		"config show":    {"config show --origin", "config show --data ~/peer -o yaml"},
		"reclaim":        {"reclaim --data ~/peer"},
		"offer register": {"offer register -f offer.yaml", "offer register -f offers.yaml"},
		"offer update":   {"offer update -f offer.yaml"},
		"offer withdraw": {"offer withdraw gpu-box-1"},
		"offer pause":    {"offer pause gpu-box-1", "offer pause gpu-box-1 --for 1h"},
		"offer resume":   {"offer resume gpu-box-1"},
		"offer reserve":  {"offer reserve KEY --units 2 --for 10m", "offer reserve KEY --request ID --proof receipt.json"},
		"offer grants":   {"offer grants", "offer grants -o json"},
		"offer release":  {"offer release 1796000000000", "offer release 1796000000000 --given --reason maintenance"},
		"offer ls":       {"offer ls", "offer ls -o json"},
		"offer fields":   {"offer fields"},
		"offer watch": {
			"offer watch --type compute --near 52.52,13.40 --radius 300km", "offer watch --type storage --max-price 0.05 -o ndjson",
		},
		"offer show":           {"offer show /blackhole/services/compute/gpu/rvupte/12D3KooW.../gpu-box-1"},
		"service ls":           {"service ls"},
		"service watch":        {"service watch"},
		"instance show":        {"instance show payment", "instance show payment payment-1"},
		"instance drain":       {"instance drain payment payment-1"},
		"instance deregister":  {"instance deregister payment payment-1"},
		"service requirements": {"service requirements"},
		"lock ls":              {"lock ls", "lock ls backups/ -o json"},
		"lock release":         {"lock release backups/nightly --force"},
		"lease grant":          {"lease grant --ttl 1m"},
		"lease keepalive":      {"lease keepalive 7587861234567890123"},
		"lease show":           {"lease show 7587861234567890123"},
		"lease revoke":         {"lease revoke 7587861234567890123"},
		"lease ls":             {"lease ls", "lease ls -o json"},
		"kv get":               {"kv get config/color", "kv get config/color --revision 12"},
		"kv put":               {"kv put config/color blue", "kv put config/color - < color.txt"},
		"kv del":               {"kv del config/color", "kv del config/ --prefix"},
		"kv ls":                {"kv ls config/"},
		"kv watch":             {"kv watch config/"},
		"group status":         {"group status"},
		"group members":        {"group members", "group members -o json"},
		"group add":            {"group add 12D3KooW..."},
		"group remove":         {"group remove 12D3KooW... --dry-run"},
		"group promote":        {"group promote 12D3KooW...", "group promote 12D3KooW... --dry-run"},
		"group replace":        {"group replace 12D3KooW... 12D3KooX... --dry-run"},
		"group transfer":       {"group transfer 12D3KooW..."},
		"group leave":          {"group leave --dry-run"},
		"group backup":         {"group backup /var/backups/blackholed-group"},
		"group restore":        {"group restore /var/backups/blackholed-group --data ~/peer", "group restore /var/backups/blackholed-group --data ~/peer --yes"},
		"version":              {"version", "version -o json"},
		"man":                  {"man ~/.local/share/man/man1"},
	}
}

// AddExamples completes the help of the commands below root.
func AddExamples(root *cobra.Command) {
	table := Examples()
	Each(root, func(path string, cmd *cobra.Command) {
		if lines := table[path]; cmd.Example == "" && lines != nil {
			cmd.Example = "  " + Program + " " + strings.Join(lines, "\n  "+Program+" ")
		}
	})
}
