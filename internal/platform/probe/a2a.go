package probe

import "strings"

// a2aKind reads the card of an agent that speaks Agent2Agent. The card of a domain's agent has a well-known name (RFC 8615).
func a2aKind() kind {
	return kind{name: "a2a", schemes: []string{"a2a", "a2a+http", "a2a+https"}, protocols: []string{"a2a", "agent2agent"}, over: web(), atop: true,
		secure: []string{"https", "a2a", "a2a+https"}, port: 80, speak: list(func(path string) string {
			if strings.HasSuffix(path, ".json") {
				return path
			}
			return "/.well-known/agent-card.json"
		}, "skills")}
}
