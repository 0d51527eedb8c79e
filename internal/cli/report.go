package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// report writes an error as one line, followed by an optional hint.
func report(stderr io.Writer, cmd *cobra.Command, err error) {
	if p := fault.ProblemOf(err); p.Remedy != "" {
		fmt.Fprintf(stderr, "%s: %s\nhint: %s\n", command.Program, term.Clean(p.Finding()), term.Clean(p.Remedy))
		return
	}
	fmt.Fprintf(stderr, "%s: %s\n", command.Program, exit.OneLine(err))
	if h := hint(cmd, err); h != "" {
		fmt.Fprintf(stderr, "hint: %s\n", h)
	}
}

// hint suggests a next step to the user, or is "".
func hint(cmd *cobra.Command, err error) string {
	calls := command.CallsPeer(cmd)
	switch kind := fault.KindOf(err); {
	case taken(err):
		return "another program listens there, such as another peer or Consul: set another address with --" + fault.FieldOf(err)
	case kind == fault.Invalid && fault.FieldOf(err) == "--where":
		return command.Program + " offer fields"
	case kind == fault.Invalid:
		return cmd.CommandPath() + " --help"
	case kind == fault.Unauthentic && calls:
		return "authenticate with --token-file, BLACKHOLE_AUTH_TOKEN, or --cert and --key"
	case kind == fault.Exists && cmd.CommandPath() == command.Program+" offer register":
		return "use " + command.Program + " offer update" + remote.Given(cmd) + " to replace an offer"
	case kind == fault.Timeout && calls:
		return "use --" + command.TimeoutFlag + " to wait longer"
	case calls && remote.Mismatch(err) != "":
		return remote.Mismatch(err)
	case kind == fault.Unavailable && calls && !exit.Answered(err):
		return "is `" + command.Program + " run` running? Set the address of the peer with --grpc or BLACKHOLE_GRPC"
	default:
		return ""
	}
}

// taken reports that an address of a peer is in use. libp2p gives the cause as text only.
func taken(err error) bool {
	return slices.Contains(settings.ListenFlags(), fault.FieldOf(err)) && strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}
