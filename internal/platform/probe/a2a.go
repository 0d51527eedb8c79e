package probe

// a2aKind reads the card of an agent that speaks Agent2Agent. The card has a well-known name (RFC 8615), at the
// domain or below the path.
func a2aKind() kind {
	return kind{name: "a2a", schemes: []string{"a2a", "a2a+http", "a2a+https"}, protocols: []string{"a2a", "agent2agent"}, over: web(), atop: true,
		secure: []string{"https", "a2a", "a2a+https"}, port: 80, speak: talk}
}
