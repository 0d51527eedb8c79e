package probe

// ollamaKind lists the models of an Ollama server.
func ollamaKind() kind {
	return kind{name: "ollama", schemes: []string{"ollama"}, protocols: []string{"ollama"}, over: web(), atop: true,
		secure: webTLS(), port: 11434, speak: talk}
}
