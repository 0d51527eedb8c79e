package probe

// openaiKind lists the models of an API in the style of OpenAI.
func openaiKind() kind {
	return kind{name: "openai", protocols: []string{"openai", "openai-api", "v1/models"}, over: web(), atop: true,
		secure: webTLS(), port: 80, speak: talk}
}
