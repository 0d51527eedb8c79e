// Package remote connects commands to the running peer: the flags and contexts that name it, credentials, the timeout,
// and the results of several changes.
package remote

import (
	"cmp"
	"context"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// DefaultTimeout bounds a call of a peer. The peer's own bounds are tighter.
const DefaultTimeout = 30 * time.Second

// LockTimeout bounds the first call for a lock: a peer without a quorum says so within 5 s.
const LockTimeout = 5 * time.Second

// Peer is the common part of all commands that call a running peer.
type Peer struct {
	*term.Console
	Cmd         *cobra.Command
	Grpc        string
	Context     string // of --context
	Timeout     time.Duration
	ConnectOnly bool // the timeout bounds the first calls only, see Connecting
	Format      term.Format
	Credentials credentials
}

// action is the work of a command that calls a peer. args are the command's arguments.
type action func(ctx context.Context, c *operator.Client, args []string) error

// New adds the flags of all commands that call a peer. Zero is no timeout.
func New(con *term.Console, cmd *cobra.Command, timeout time.Duration) *Peer {
	r := &Peer{Console: con, Cmd: cmd}
	cmd.Flags().StringVar(&r.Grpc, "grpc", "", "gRPC address of the peer to call, or unix:///PATH (environment BLACKHOLE_GRPC; default "+client.DefaultAddress+")")
	cmd.Flags().StringVar(&r.Context, "context", "", "context with the peer to call, see "+command.Program+" context (environment "+environ.Context+")")
	command.CompleteBy(cmd, "context", CompleteContext(con))
	cmd.Flags().DurationVar(&r.Timeout, command.TimeoutFlag, timeout, "longest time to wait; 0 means no limit")
	r.Credentials.flags(cmd)
	command.Output(cmd, &r.Format)
	return r
}

// Calls makes do the action of the command.
func (r *Peer) Calls(do action) *cobra.Command {
	r.Cmd.RunE = func(cmd *cobra.Command, args []string) error { return r.Call(cmd.Context(), args, do) }
	return r.Cmd
}

// Coordinates is calls for an action that needs the peer's coordination group. A peer
// without a group exits like one without quorum, so that scripts try another peer.
func (r *Peer) Coordinates(do action) *cobra.Command {
	r.Cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := r.Call(cmd.Context(), args, do)
		if fault.KindOf(err) == fault.Unsupported {
			return fault.Wrap("", fault.New("", fault.Unavailable, "the peer takes no part in a coordination group: see its setting coordination.enabled"))
		}
		return err
	}
	return r.Cmd
}

// Address is the gRPC address of the peer to call: of the flag, of the environment or of the context. "" is the default.
func (r *Peer) Address() (string, error) {
	address := r.Grpc
	if address == "" {
		address, _ = r.Env(config.Prefix + "GRPC")
	}
	return r.choose(address)
}

// Given returns the flags that name the peer and the credentials of a call, as a shell reads them, for the next command that a
// text recommends: " --grpc 127.0.0.1:8512", or "" without such flags. The secret of --token is never printed.
func Given(cmd *cobra.Command) (flags string) {
	for _, name := range []string{"grpc", "context", "token-file", "tls-ca", "cert", "key"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			flags += " --" + name + " " + Quoted(f.Value.String())
		}
	}
	return flags
}

// Quoted is one word of a POSIX shell.
func Quoted(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:@%+=,", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Given are the flags that name the peer of this call: see the function.
func (r *Peer) Given() string { return Given(r.Cmd) }

// Call connects to the peer and runs do within the timeout.
func (r *Peer) Call(ctx context.Context, args []string, do action) error {
	address, err := r.Address()
	if err != nil {
		return err
	}
	if address == config.Off {
		return fault.Invalidf("--grpc", address, "must name a peer: a peer with grpc: off serves no commands")
	}
	if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
		return fault.Invalidf("--grpc", address, "is a URL: use HOST:PORT of the peer's gRPC address, or unix:///PATH")
	}
	if r.Timeout < 0 {
		return fault.Invalidf("--"+command.TimeoutFlag, r.Timeout, "must be at least 0")
	}
	if !r.ConnectOnly {
		var cancel context.CancelFunc
		ctx, cancel = Bounded(ctx, r.Timeout)
		defer cancel()
	}
	c, err := r.dial(address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // all calls have ended: an error is harmless
	if !r.ConnectOnly && r.Timeout > 0 {
		defer r.Wait(ctx, "waiting for the peer at "+cmp.Or(address, client.DefaultAddress), r.Timeout)()
	}
	if r.ConnectOnly || r.Timeout == 0 { // what goes on for ever would try again for ever
		err = r.reach(ctx, c)
	}
	if err == nil {
		err = do(ctx, c, args)
	}
	if fault.KindOf(err) == fault.Unavailable && !exit.Answered(err) {
		return fault.New("", fault.Unavailable, "no peer answers at %s: %s", cmp.Or(address, client.DefaultAddress), dialed(exit.Message(err)))
	}
	if fault.KindOf(err) == fault.Timeout && r.Timeout > 0 && !r.ConnectOnly && exit.Message(err) == context.DeadlineExceeded.Error() {
		return fault.New("", fault.Timeout, "the peer at %s gave no answer within %v", cmp.Or(address, client.DefaultAddress), r.Timeout)
	}
	return err
}

// reach fails if no peer answers at the address. Any answer will do.
func (r *Peer) reach(ctx context.Context, c *operator.Client) error {
	ctx, cancel := Bounded(ctx, cmp.Or(r.Timeout, DefaultTimeout))
	defer cancel()
	if _, err := c.Status(ctx); fault.KindOf(err) == fault.Unavailable && !exit.Answered(err) {
		return err
	}
	return nil
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

// Connecting returns the context for the first calls of an endless command: --timeout bounds
// only these.
func (r *Peer) Connecting(ctx context.Context) (context.Context, context.CancelFunc) {
	return Bounded(ctx, r.Timeout)
}

// Print writes a document to standard output.
func (r *Peer) Print(d term.Document) error { return r.Format.Print(r.Console, d) }

// PrintNext writes one document of a sequence.
func (r *Peer) PrintNext(d term.Document) error {
	if r.Format == term.AsYAML {
		if _, err := io.WriteString(r.Stdout, "---\n"); err != nil {
			return fault.As("cli.print", fault.Internal, err)
		}
	}
	return r.Print(d)
}

// Running returns the settings of the running peer by their keys. It needs the role admin.
func Running(ctx context.Context, c *operator.Client) (map[string]string, error) {
	files, err := c.Debug(ctx)
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for _, file := range files {
		if file.Name != "settings.txt" {
			continue
		}
		for line := range strings.Lines(string(file.Content)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			set[key] = value
		}
	}
	return set, nil
}

// Interrupted returns the error of an endless command after its context ended. A timeout after
// the first answer is the end that the user asked for.
func Interrupted(ctx context.Context, answered bool) error {
	err := fault.Wrap("", ctx.Err())
	if answered && fault.KindOf(err) == fault.Timeout {
		return nil
	}
	return err
}

// Bounded limits ctx to a timeout. Zero means no limit.
func Bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// httpListens is the cause of a failed call at an address of HTTP.
const httpListens = "an HTTP server listens there"

// Mismatch says how to speak to the program that listens at the address of a failed call; empty if it is not known to speak otherwise.
func Mismatch(err error) string {
	text := fault.Message(err)
	switch {
	case fault.KindOf(err) != fault.Unavailable, exit.Answered(err):
		return ""
	case strings.Contains(text, httpListens), strings.Contains(text, "reading server preface: http2: "):
		return "use the gRPC address of the peer, by default " + client.DefaultAddress
	case strings.Contains(text, "tls: first record does not look like a TLS handshake"):
		return "the peer speaks without TLS: leave out --tls-ca, --cert and --key"
	case Expired(err):
		return "on the machine of the peer put a new certificate at auth.server_cert and its key at auth.server_key, which needs no restart"
	case strings.Contains(text, "x509: "):
		return "name the CA of the peer's certificate with --tls-ca, and the peer with --grpc as its certificate does"
	case strings.Contains(text, "tls: "):
		return "the peer refuses this certificate: see --cert, --key and --tls-ca"
	case strings.HasSuffix(text, "reading server preface: EOF"), strings.HasSuffix(text, "reading server preface: connection reset by peer"):
		return "the peer seems to speak TLS: name the CA of its certificate with --tls-ca"
	}
	return ""
}

// Expired reports that the certificate of the peer of a failed call has expired.
func Expired(err error) bool {
	return err != nil && strings.Contains(err.Error(), "x509: certificate has expired") && strings.Contains(err.Error(), " is after ")
}

// CleanupTimeout bounds the calls that undo the work of a command at its end.
const CleanupTimeout = 5 * time.Second
