package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// timeoutFlag is what all commands that speak to a peer have, and no other.
const timeoutFlag = "timeout"

// defaultTimeout bounds a command that speaks to a peer; the peer's own bounds are tighter.
const defaultTimeout = 30 * time.Second

// remote is a peer to talk to, and how to show what it says.
type remote struct {
	app     App
	grpc    string
	timeout time.Duration
	format  format

	credentials credentials
}

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command, f *format) {
	*f = formatTable
	cmd.Flags().VarP(f, "output", "o", "table, json, ndjson or yaml")
	complete(cmd, "output", formats()...)
}

// remoteFlags adds the flags that all commands to a peer have.
func (a App) remoteFlags(cmd *cobra.Command, timeout time.Duration) *remote {
	r := &remote{app: a}
	cmd.Flags().StringVar(&r.grpc, "grpc", "", "gRPC address of the peer to ask, or unix:///PATH (environment BLACKHOLE_GRPC; default "+client.DefaultAddress+")")
	cmd.Flags().DurationVar(&r.timeout, timeoutFlag, timeout, "longest time to wait; 0 is without bound")
	r.credentials.flags(cmd)
	outputFlag(cmd, &r.format)
	return r
}

// complete offers the shell the values of a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("cli: completion of a flag that is not there: " + flag) // impossible: the caller has just added it
	}
}

// call connects to the peer and runs do, within the timeout.
func (r *remote) call(cmd *cobra.Command, do func(ctx context.Context, c *client.Client) error) error {
	address := r.grpc
	if address == "" {
		address, _ = r.app.env(config.Prefix + "GRPC")
	}
	if address == config.Off {
		return fault.Invalidf("--grpc", address, "must name a peer: a peer with grpc: off serves no commands")
	}
	if r.timeout < 0 {
		return fault.Invalidf("--"+timeoutFlag, r.timeout, "must be at least 0")
	}
	ctx := cmd.Context()
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	c, err := r.dial(address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // every call is over; what closing says changes nothing
	err = do(ctx, c)
	if fault.KindOf(err) == fault.Unavailable && !answered(err) {
		return fault.New("", fault.Unavailable, "no peer answers at %s: %s", cmp.Or(address, client.DefaultAddress), message(err))
	}
	return err
}

// coordinate is call for what a peer does in a coordination group. One that takes no part in any is to scripts as
// one whose group has no quorum: another peer may do it.
func (r *remote) coordinate(cmd *cobra.Command, do func(ctx context.Context, c *client.Client) error) error {
	err := r.call(cmd, do)
	if fault.KindOf(err) == fault.Unsupported {
		return fault.Wrap("", fault.New("", fault.Unavailable, "the peer takes no part in a coordination group: see its setting coordination.enabled"))
	}
	return err
}

// print writes a document to standard output.
func (r *remote) print(d document) error { return r.format.print(r.app.Stdout, d) }

// say tells the user something that is not data.
func (a App) say(format string, args ...any) {
	fmt.Fprintln(a.Stderr, clean(fmt.Sprintf(format, args...)))
}
