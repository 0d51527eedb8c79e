package probe

import "strings"

// openaiKind lists the models of an API in the style of OpenAI.
func openaiKind() kind {
	return kind{name: "openai", schemes: nil, protocols: []string{"openai", "openai-api", "v1/models"}, over: web(), atop: true, secure: webTLS(), port: 80,
		speak: list(func(path string) string {
			path = strings.TrimSuffix(path, "/")
			return strings.TrimSuffix(path, "/v1") + "/v1/models"
		}, "data")}
}
