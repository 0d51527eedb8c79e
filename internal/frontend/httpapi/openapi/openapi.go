// Package openapi holds the OpenAPI 3.1 document of the HTTP API. The tests of package httpapi
// check their requests and answers against it.
package openapi

import (
	_ "embed"
	"encoding/json"
	"maps"
	"regexp"
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
	paths := whole["paths"].(map[string]any)
	for path, item := range maps.Clone(paths) {
		if instead, parameter, ok := Named(path); ok {
			paths[instead] = named(item, path, instead, parameter)
		}
	}
	text, err := json.Marshal(whole)
	if err != nil {
		panic("openapi: " + err.Error()) // impossible after tree
	}
	return string(text)
}

// Named returns the path at which a parameter of the query names the object of a path: proxies that decode paths break names with a
// slash. It returns false for other paths.
func Named(path string) (instead, parameter string, ok bool) {
	for _, of := range [][3]string{
		{"/v1/coordination/keys/{key}", "/v1/coordination/key", "key"},
		{"/v1/coordination/locks/{name}", "/v1/coordination/lock", "name"},
		{"/v1/coordination/requirements/{id}", "/v1/coordination/requirement", "id"},
		{"/v1/discovery/records/{id}", "/v1/discovery/record", "id"},
	} {
		if rest, found := strings.CutPrefix(path, of[0]); found {
			return of[1] + rest, of[2], true
		}
	}
	return "", "", false
}

// named describes the operations of a path at another one.
func named(item any, path, instead, parameter string) any {
	text, err := json.Marshal(item)
	if err != nil {
		panic("openapi: " + err.Error()) // impossible after tree
	}
	from, rest, _ := strings.Cut(path, "{"+parameter+"}")
	sample := regexp.MustCompile(`'?localhost:8500` + from + `([^/?' ]+)` + rest + `(?:\?([^' ]*))?'?`)
	operations := tree(string(text))
	for _, o := range operations {
		o, ok := o.(map[string]any)
		if !ok {
			continue
		}
		o["operationId"] = o["operationId"].(string) + "ByParameter"
		o["summary"] = o["summary"].(string) + ", named in the query"
		for _, p := range o["parameters"].([]any) {
			if p := p.(map[string]any); p["in"] == "path" {
				p["in"], p["description"] = "query", "the "+parameter+", which may have a slash"
			}
		}
		for _, s := range o["x-codeSamples"].([]any) {
			s := s.(map[string]any)
			s["source"] = strings.Replace(sample.ReplaceAllString(s["source"].(string), `'localhost:8500`+instead+`?`+parameter+`=$1&$2'`), "&'", "'", 1)
		}
	}
	return operations
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
