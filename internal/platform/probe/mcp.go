package probe

import (
	"context"
	"net/http"
	"time"
)

// mcpKind begins a conversation in the Model Context Protocol over HTTP.
func mcpKind() kind {
	return kind{name: "mcp", schemes: []string{"mcp", "mcp+http", "mcp+https"}, protocols: []string{"mcp", "model-context-protocol"}, over: web(), atop: true,
		secure: []string{"https", "mcp", "mcp+https"}, port: 80, speak: talk}
}

// endSession deletes the session that the server began for a check, also if the time of the check is over.
func (s *session) endSession(ctx context.Context, d *dialect, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	header := http.Header{"Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {d.since}}
	_, _ = s.ask(ctx, &dialect{method: http.MethodDelete, header: header}, d.at(""))
}
