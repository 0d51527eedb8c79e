package cli

import (
	"cmp"
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// timeoutFlag is a flag of exactly the commands that call a peer.
const timeoutFlag = "timeout"

// defaultTimeout bounds a call of a peer. The peer's own bounds are tighter.
const defaultTimeout = 30 * time.Second

// lockTimeout bounds the first call for a lock: a peer without a quorum says so within 5 s.
const lockTimeout = 5 * time.Second

// remote is the common part of all commands that call a running peer.
type remote struct {
	*console
	cmd         *cobra.Command
	grpc        string
	context     string // of --context
	timeout     time.Duration
	connectOnly bool // the timeout bounds the first calls only, see connecting
	format      format
	credentials credentials
}

// action is the work of a command that calls a peer. args are the command's arguments.
type action func(ctx context.Context, c *client.Client, args []string) error

// newRemote adds the flags of all commands that call a peer. Zero is no timeout.
func newRemote(con *console, cmd *cobra.Command, timeout time.Duration) *remote {
	r := &remote{console: con, cmd: cmd}
	cmd.Flags().StringVar(&r.grpc, "grpc", "", "gRPC address of the peer to call, or unix:///PATH (environment BLACKHOLE_GRPC; default "+client.DefaultAddress+")")
	cmd.Flags().StringVar(&r.context, "context", "", "context with the peer to call, see "+name+" context (environment "+contextVariable+")")
	completeBy(cmd, "context", con.completeContext)
	cmd.Flags().DurationVar(&r.timeout, timeoutFlag, timeout, "longest time to wait; 0 means no limit")
	r.credentials.flags(cmd)
	outputFlag(cmd, &r.format)
	return r
}

// calls makes do the action of the command.
func (r *remote) calls(do action) *cobra.Command {
	r.cmd.RunE = func(cmd *cobra.Command, args []string) error { return r.call(cmd.Context(), args, do) }
	return r.cmd
}

// coordinates is calls for an action that needs the peer's coordination group. A peer
// without a group exits like one without quorum, so that scripts try another peer.
func (r *remote) coordinates(do action) *cobra.Command {
	r.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := r.call(cmd.Context(), args, do)
		if fault.KindOf(err) == fault.Unsupported {
			return fault.Wrap("", fault.New("", fault.Unavailable, "the peer takes no part in a coordination group: see its setting coordination.enabled"))
		}
		return err
	}
	return r.cmd
}

// address is the gRPC address of the peer to call: of the flag, of the environment or of the context. "" is the default.
func (r *remote) address() (string, error) {
	address := r.grpc
	if address == "" {
		address, _ = r.env(config.Prefix + "GRPC")
	}
	return r.choose(address)
}

// call connects to the peer and runs do within the timeout.
func (r *remote) call(ctx context.Context, args []string, do action) error {
	address, err := r.address()
	if err != nil {
		return err
	}
	if address == config.Off {
		return fault.Invalidf("--grpc", address, "must name a peer: a peer with grpc: off serves no commands")
	}
	if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
		return fault.Invalidf("--grpc", address, "is a URL: use HOST:PORT of the peer's gRPC address, or unix:///PATH")
	}
	if r.timeout < 0 {
		return fault.Invalidf("--"+timeoutFlag, r.timeout, "must be at least 0")
	}
	if !r.connectOnly {
		var cancel context.CancelFunc
		ctx, cancel = bounded(ctx, r.timeout)
		defer cancel()
	}
	c, err := r.dial(address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // all calls have ended: an error is harmless
	if !r.connectOnly && r.timeout > 0 {
		defer r.wait(ctx, "waiting for the peer at "+cmp.Or(address, client.DefaultAddress), r.timeout)()
	}
	err = do(ctx, c, args)
	if fault.KindOf(err) == fault.Unavailable && !answered(err) {
		return fault.New("", fault.Unavailable, "no peer answers at %s: %s", cmp.Or(address, client.DefaultAddress), dialed(message(err)))
	}
	if fault.KindOf(err) == fault.Timeout && r.timeout > 0 && !r.connectOnly && message(err) == context.DeadlineExceeded.Error() {
		return fault.New("", fault.Timeout, "the peer at %s gave no answer within %v", cmp.Or(address, client.DefaultAddress), r.timeout)
	}
	return err
}

// dialed shortens the text of gRPC about a failed connection to its cause.
func dialed(text string) string {
	if strings.Contains(text, "looked like an HTTP/1.1 header") {
		return httpListens
	}
	for _, before := range []string{`desc = "`, "transport: Error while dialing: ", "transport: authentication handshake failed: "} {
		if _, cause, found := strings.Cut(text, before); found {
			text = strings.TrimSuffix(cause, `"`)
		}
	}
	for _, before := range []string{": connect: ", ": dial unix "} {
		if _, cause, found := strings.Cut(text, before); found {
			text = cause
		}
	}
	return text
}

// connecting returns the context for the first calls of an endless command: --timeout bounds
// only these.
func (r *remote) connecting(ctx context.Context) (context.Context, context.CancelFunc) {
	return bounded(ctx, r.timeout)
}

// print writes a document to standard output.
func (r *remote) print(d document) error { return r.format.print(r.console, d) }

// printNext writes one document of a sequence.
func (r *remote) printNext(d document) error {
	if r.format == formatYAML {
		if _, err := io.WriteString(r.stdout, "---\n"); err != nil {
			return fault.As("cli.print", fault.Internal, err)
		}
	}
	return r.print(d)
}

// interrupted returns the error of an endless command after its context ended. A timeout after
// the first answer is the end that the user asked for.
func interrupted(ctx context.Context, answered bool) error {
	err := fault.Wrap("", ctx.Err())
	if answered && fault.KindOf(err) == fault.Timeout {
		return nil
	}
	return err
}

// hopeless reports whether the next call of the same peer would fail in the same way.
func hopeless(err error) bool {
	switch fault.KindOf(err) {
	case fault.Timeout, fault.Canceled, fault.Unavailable:
		return true
	}
	return false
}
