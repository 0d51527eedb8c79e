package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
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
	mu    sync.Mutex // one line at a time; guards under
	out   io.Writer
	under map[string]context.CancelFunc // what ends a call, by id
}

func mcpCommand(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "mcp", Short: "Serve an agent by the Model Context Protocol", Args: command.NoArgs,
		Long: "Serve an agent that starts programs and speaks the Model Context Protocol over their standard input\n" +
			"and output: pass its messages on to /mcp of the peer. An agent that speaks HTTP can call that itself.",
		Example: "  " + command.Program + " mcp\n  " + command.Program + " mcp --http https://peer.example.com:8500 --token-file agent.token",
	}
	b := &bridge{Web: remote.NewWeb(con, cmd, config.Default().HTTP), out: con.Stdout, under: make(map[string]context.CancelFunc)}
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
	listening, stop := context.WithCancel(ctx) // streams end with the input; other calls get their answers
	defer stop()
	places := make(chan struct{}, maxAsking)
	for {
		select {
		case line := <-lines:
			places <- struct{}{} // the end of ctx frees them
			asking.Go(func() {
				b.pass(ctx, listening, line)
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
func (b *bridge) pass(ctx, listening context.Context, line []byte) {
	var asked asked
	_ = json.Unmarshal(line, &asked) // the peer says what is wrong
	if asked.Method == "notifications/cancelled" {
		b.cancel(string(asked.Params.RequestID))
		return
	}
	if asked.Method == "subscriptions/listen" {
		ctx = listening
	}
	ctx, end := b.begin(ctx, string(asked.ID))
	defer end()
	reply, err := b.ask(ctx, line, asked.headers())
	if ctx.Err() != nil {
		return // a cancelled call has no answer
	}
	if err != nil && asked.ID != nil {
		failure := map[string]any{"code": -32603, "message": exit.Message(err)}
		reply, _ = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": asked.ID, "error": failure})
	}
	if len(reply) == 0 {
		return
	}
	b.write(reply)
}

func (b *bridge) write(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.out.Write(append(line, '\n')) // an agent that has gone ends the input too
}

// begin notes a call, so that the agent can end it.
func (b *bridge) begin(ctx context.Context, id string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if id != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.under[id] = cancel
	}
	return ctx, func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.under, id)
	}
}

func (b *bridge) cancel(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := b.under[id]; end != nil {
		end()
	}
}

// asked is what the bridge reads of a message: the headers that HTTP wants repeat it.
type asked struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta      map[string]json.RawMessage `json:"_meta"`
		Version   string                     `json:"protocolVersion"`
		Name      string                     `json:"name"`
		URI       string                     `json:"uri"`
		RequestID json.RawMessage            `json:"requestId"`
	} `json:"params"`
}

// headers are those of the stateless revisions. The handshake of the oldest revision says that it came by this way.
func (a *asked) headers() map[string]string {
	h := make(map[string]string)
	var version string
	if _ = json.Unmarshal(a.Params.Meta["io.modelcontextprotocol/protocolVersion"], &version); version != "" {
		h["Mcp-Method"] = a.Method
		if name := cmp.Or(a.Params.Name, a.Params.URI); name != "" {
			h["Mcp-Name"] = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(name)) + "?="
		}
	} else if a.Method == "initialize" {
		version = a.Params.Version
	}
	if version != "" {
		h["MCP-Protocol-Version"] = version
	}
	return h
}

func (b *bridge) ask(ctx context.Context, line []byte, headers map[string]string) ([]byte, error) {
	answer, err := b.Post(ctx, "/mcp", line, headers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		s := bufio.NewScanner(answer.Body)
		s.Buffer(nil, maxReply)
		for s.Scan() {
			if event, ok := bytes.CutPrefix(s.Bytes(), []byte("data: ")); ok {
				b.write(bytes.Clone(event))
			}
		}
		return nil, nil // its last event was the answer
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReply))
	switch text = bytes.TrimSpace(text); {
	case err != nil:
		return nil, fault.New("", fault.Unavailable, "the peer's answer broke off: %w", err)
	case len(text) > 0 && !bytes.HasPrefix(text, []byte(`{"jsonrpc"`)) && !bytes.HasPrefix(text, []byte(`[{"jsonrpc"`)), len(text) == 0 && answer.StatusCode != http.StatusAccepted:
		return nil, fault.New("", fault.Unavailable, "the peer answers %s %s", answer.Status, text)
	}
	return text, nil
}
