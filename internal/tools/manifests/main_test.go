package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const deploy = "../../../deploy"

func TestDeploy(t *testing.T) {
	for _, c := range []struct {
		path, want string
		of         func(string) (string, error)
	}{
		{"docker/Dockerfile", "2 stages", dockerfile}, {"compose/compose.yaml", "8 services", composeFile}, {"kubernetes", "6 objects", kubernetes},
	} {
		found, err := c.of(filepath.Join(deploy, filepath.FromSlash(c.path)))
		if err != nil || found != c.want {
			t.Errorf("%s: %s, want %s; %v", c.path, found, c.want, err)
		}
	}
}

// TestFaults plants one fault at a time: the checks can fail.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		file, old, new, want string
		of                   func(string) (string, error)
	}{
		"instruction":     {"docker/Dockerfile", "EXPOSE", "EXPOSES", "unknown instruction", dockerfile},
		"lint":            {"docker/Dockerfile", " AS build", " as build", "FromAsCasing", dockerfile},
		"compose key":     {"compose/compose.yaml", "restart:", "restarts:", "restarts", composeFile},
		"compose volume":  {"compose/compose.yaml", `"peer-1:/data"`, `"peer-9:/data"`, "peer-9", composeFile},
		"unknown field":   {"kubernetes/statefulset.yaml", "replicas:", "replica:", "replica", kubernetes},
		"wrong type":      {"kubernetes/statefulset.yaml", "containerPort: 8500", `containerPort: "http"`, "containerPort", kubernetes},
		"labels":          {"kubernetes/statefulset.yaml", "component: peer}\n      annotations", "component: other}\n      annotations", "lack the label", kubernetes},
		"missing file":    {"kubernetes/kustomization.yaml", "network.yaml", "networks.yaml", "networks.yaml", kubernetes},
		"unknown kind":    {"kubernetes/services.yaml", "kind: Service\n", "kind: Servce\n", "Servce", kubernetes},
		"kustomize field": {"kubernetes/kustomization.yaml", "resources:", "resource:", "resource", kubernetes},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(deploy)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, filepath.FromSlash(c.file))
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), c.old, c.new, 1)
			if changed == string(text) {
				t.Fatalf("%s has no %q", c.file, c.old)
			}
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(c.file, "kubernetes") {
				path = filepath.Dir(path)
			}
			if _, err := c.of(path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
