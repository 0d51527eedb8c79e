// Package openapi holds the OpenAPI 3.1 document of the HTTP API. The tests of package httpapi
// check their requests and answers against it.
package openapi

import _ "embed"

//go:embed openapi.json
var document string

// Document is the text, JSON.
func Document() string { return document }
