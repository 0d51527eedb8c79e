// Command manifests reads the files in deploy as their own programs do: the Dockerfile by BuildKit's parser and linter, the
// compose file by Docker Compose's loader with its schema, and the Kubernetes manifests by kustomize and then, strictly, into
// Kubernetes' own types. It runs without a cluster, a daemon or a network:
//
//	cd internal/tools/manifests && go run . ../../../deploy
//
// It prints each fault, and exits with 1 after a fault.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	compose "github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manifests DIRECTORY, such as deploy")
		os.Exit(2)
	}
	dir := os.Args[1]
	failed := false
	for _, check := range []struct {
		path string
		of   func(path string) (found string, err error)
	}{
		{"docker/Dockerfile", dockerfile}, {"compose/compose.yaml", composeFile}, {"kubernetes", kubernetes},
	} {
		found, err := check.of(filepath.Join(dir, filepath.FromSlash(check.path)))
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %v\n", check.path, err)
			continue
		}
		fmt.Printf("%s: %s\n", check.path, found)
	}
	if failed {
		os.Exit(1)
	}
}

// dockerfile parses all instructions. Each warning of the linter is a fault.
func dockerfile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	tree, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	var faults []error
	for _, w := range tree.Warnings {
		faults = append(faults, errors.New(w.Short))
	}
	warn := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) {
		faults = append(faults, fmt.Errorf("line %d: %s: %s", at[0].Start.Line, rule, message))
	}})
	stages, _, err := instructions.Parse(tree.AST, warn)
	if err == nil && len(stages) == 0 {
		err = errors.New("has no stages")
	}
	return fmt.Sprintf("%d stages", len(stages)), errors.Join(append(faults, err)...)
}

// composeFile loads a project: schema, references between its parts, variables.
func composeFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	project, err := loader.LoadWithContext(context.Background(), compose.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []compose.ConfigFile{{Filename: path, Content: text}},
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d services", len(project.Services)), nil
}

// kubernetes builds a kustomization and decodes each object. An unknown field is a fault.
func kubernetes(dir string) (string, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return "", err
	}
	var faults []error
	for _, r := range built.Resources() {
		var object any
		switch kind := r.GetApiVersion() + " " + r.GetKind(); kind {
		case "v1 Namespace":
			object = new(core.Namespace)
		case "v1 Service":
			object = new(core.Service)
		case "apps/v1 StatefulSet":
			object = new(apps.StatefulSet)
		case "policy/v1 PodDisruptionBudget":
			object = new(policy.PodDisruptionBudget)
		case "networking.k8s.io/v1 NetworkPolicy":
			object = new(networking.NetworkPolicy)
		default:
			faults = append(faults, fmt.Errorf("%s: no type for it here: add one", kind))
			continue
		}
		text, err := r.AsYAML()
		if err == nil {
			err = yaml.UnmarshalStrict(text, object)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %s: %s", r.GetKind(), r.GetName(), strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: ")))
		}
		faults = append(faults, selected(object)...)
	}
	return fmt.Sprintf("%d objects", built.Size()), errors.Join(faults...)
}

// selected checks what the types cannot: a set finds its own pods.
func selected(object any) (faults []error) {
	set, ok := object.(*apps.StatefulSet)
	if !ok || set.Spec.Selector == nil {
		return nil
	}
	for label, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[label] != value {
			faults = append(faults, fmt.Errorf("StatefulSet %s: its pods lack the label %s=%s of its selector", set.Name, label, value))
		}
	}
	return faults
}
