package probe

import "strings"

// ollamaKind lists the models of an Ollama server.
func ollamaKind() kind {
	return kind{name: "ollama", schemes: []string{"ollama"}, protocols: []string{"ollama"}, over: web(), atop: true, secure: webTLS(), port: 11434,
		speak: list(func(path string) string { return strings.TrimSuffix(path, "/") + "/api/tags" }, "models")}
}
