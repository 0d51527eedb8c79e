package probe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// mcpKind initializes a session of the Model Context Protocol over HTTP and lists the tools.
func mcpKind() kind {
	return kind{name: "mcp", schemes: []string{"mcp", "mcp+http", "mcp+https"}, protocols: []string{"mcp", "model-context-protocol"}, over: web(), atop: true,
		secure: []string{"https", "mcp", "mcp+https"}, port: 80, speak: speakMCP}
}

func speakMCP(ctx context.Context, s *session) (Outcome, error) {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	a, err := s.ask(ctx, http.MethodPost, s.target.Path, header, []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"mcp","version":"0.1.0"}}}`))
	if err != nil {
		return Outcome{}, err
	}
	var first struct {
		Result *struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	switch {
	case a.status >= 500:
		return a.as(Refuses), nil
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return s.answered(a.text()), nil
	case a.status != http.StatusOK, json.Unmarshal(a.body, &first) != nil, first.Result == nil || first.Result.ProtocolVersion == "":
		return Outcome{State: WrongProtocol, Detail: a.text() + " to initialize"}, nil
	}
	o := s.answered("initialized " + first.Result.ProtocolVersion)
	header.Set("Mcp-Protocol-Version", first.Result.ProtocolVersion)
	if id := a.header.Get("Mcp-Session-Id"); id != "" {
		header.Set("Mcp-Session-Id", id)
	}
	if _, err := s.ask(ctx, http.MethodPost, s.target.Path, header, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		return o, nil
	}
	var tools struct {
		Result *struct {
			Tools []json.RawMessage `json:"tools"`
		} `json:"result"`
	}
	a, err = s.ask(ctx, http.MethodPost, s.target.Path, header, []byte(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`))
	if err == nil && json.Unmarshal(a.body, &tools) == nil && tools.Result != nil {
		o.Detail += fmt.Sprintf(", %d tools", len(tools.Result.Tools))
	}
	return o, nil
}

// firstEvent returns the data of the first event of a stream.
func firstEvent(r io.Reader) []byte {
	var data []byte
	for scan := bufio.NewScanner(io.LimitReader(r, maxAnswer)); scan.Scan(); {
		line := scan.Bytes()
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimSpace(rest)...)
		} else if len(line) == 0 && len(data) > 0 {
			break
		}
	}
	return data
}
