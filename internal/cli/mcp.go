package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the bridge for agents.
const (
	maxMessage = 64 << 10 // from the agent, as at the peer
	maxReply   = 8 << 20  // of the peer: an answer of the HTTP API twice, escaped
	maxAsking  = 16       // messages at a time
)

// bridge passes the messages of an agent on to the peer.
type bridge struct {
	*remote.Web
	mu  sync.Mutex // one reply at a time
	out io.Writer
}

func mcpCommand(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "mcp", Short: "Serve an agent by the Model Context Protocol", Args: command.NoArgs,
		Long: "Serve an agent that starts programs and speaks the Model Context Protocol over their standard input\n" +
			"and output: pass its messages on to /mcp of the peer. An agent that speaks HTTP can call that itself.",
		Example: "  " + command.Program + " mcp\n  " + command.Program + " mcp --http https://peer.example.com:8500 --token-file agent.token",
	}
	b := &bridge{Web: remote.NewWeb(con, cmd, config.Default().HTTP), out: con.Stdout}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), con.Stdin) }
	return cmd
}

// run passes messages on until the input ends, and then waits for the replies.
func (b *bridge) run(ctx context.Context, in io.Reader) error {
	if err := b.Open(); err != nil {
		return err
	}
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() { // it ends with the input, or with the program
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxMessage)
		for s.Scan() {
			if line := bytes.Clone(bytes.TrimSpace(s.Bytes())); len(line) > 0 {
				lines <- line
			}
		}
		ended <- s.Err()
	}()
	var asking sync.WaitGroup
	defer asking.Wait()
	places := make(chan struct{}, maxAsking)
	for {
		select {
		case line := <-lines:
			places <- struct{}{} // the end of ctx frees them
			asking.Go(func() {
				b.pass(ctx, line)
				<-places
			})
		case err := <-ended:
			if err != nil {
				err = fault.Invalidf("", nil, "a message of the agent cannot be read: %w", err)
			}
			return err
		case <-ctx.Done():
			return fault.Wrap("", ctx.Err())
		}
	}
}

// pass asks the peer, and writes its reply. A question without one gets an error, so that the agent does not wait.
func (b *bridge) pass(ctx context.Context, line []byte) {
	var asked struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &asked) // the peer says what is wrong
	reply, err := b.ask(ctx, line)
	if err != nil && asked.ID != nil {
		failure := map[string]any{"code": -32603, "message": exit.Message(err)}
		reply, _ = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": asked.ID, "error": failure})
	}
	if len(reply) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.out.Write(append(reply, '\n')) // an agent that has gone ends the input too
}

func (b *bridge) ask(ctx context.Context, line []byte) ([]byte, error) {
	answer, err := b.Post(ctx, "/mcp", line)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReply))
	switch text = bytes.TrimSpace(text); {
	case err != nil:
		return nil, fault.New("", fault.Unavailable, "the peer's answer broke off: %w", err)
	case len(text) > 0 && !bytes.HasPrefix(text, []byte(`{"jsonrpc"`)), len(text) == 0 && answer.StatusCode != http.StatusAccepted:
		return nil, fault.New("", fault.Unavailable, "the peer answers %s %s", answer.Status, text)
	}
	return text, nil
}
