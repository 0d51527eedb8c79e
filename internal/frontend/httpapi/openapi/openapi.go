// Package openapi holds the OpenAPI 3.1 document of the HTTP API. The tests of package httpapi
// check their requests and answers against it.
package openapi

import (
	_ "embed"
	"encoding/json"
	"strings"
)

//go:embed openapi.json
var written string

// generated is the part of the calls that the schema of gRPC binds to paths. A test of package httpapi writes their types.
//
//go:embed coordination.json
var generated string

// Document returns the whole text, JSON. The caller keeps it.
func Document() string {
	whole := tree(written)
	merge(whole, tree(generated))
	text, err := json.Marshal(whole)
	if err != nil {
		panic("openapi: " + err.Error()) // impossible after tree
	}
	return string(text)
}

func tree(text string) (t map[string]any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&t); err != nil {
		panic("openapi: " + err.Error()) // a test reads both files
	}
	return t
}

// merge adds the members of an object to another one, at every depth.
func merge(into, from map[string]any) {
	for name, v := range from {
		old, ok := into[name].(map[string]any)
		if add, both := v.(map[string]any); ok && both {
			merge(old, add)
		} else {
			into[name] = v
		}
	}
}
