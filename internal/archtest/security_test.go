package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLicences: every module in the binary has a licence that permits its use, with conditions that a note of the
// licence fulfils.
func TestLicences(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/blackholed")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(modules)
	modules = slices.DeleteFunc(slices.Compact(modules), func(line string) bool { return line == "" })
	if len(modules) < 50 {
		t.Fatalf("only %d modules: the search is broken", len(modules))
	}
	for _, line := range modules {
		path, dir, _ := strings.Cut(line, " ")
		if licence := licenceOf(dir); licence == "" {
			t.Errorf("%s has no known permissive licence: read it, and add it here or drop the module", path)
		}
	}
}

// licenceOf returns the kind of the first known licence in a folder, or "".
func licenceOf(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, file := range files {
		name := strings.ToUpper(filepath.Base(file))
		if !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && !strings.HasPrefix(name, "UNLICENSE") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		words := strings.Join(strings.Fields(string(text)), " ")
		for _, known := range [][2]string{
			{"Apache-2.0", "Apache License"},
			{"Apache-2.0", "www.apache.org/licenses/LICENSE-2.0"},
			{"MIT", "Permission is hereby granted, free of charge"},
			{"BSD", "Redistribution and use in source and binary forms"},
			{"ISC", "Permission to use, copy, modify, and/or distribute this software"},
			{"ISC", "Permission to use, copy, modify, and distribute this software"},
			{"MPL-2.0", "Mozilla Public License"},
			{"Unlicense", "This is free and unencumbered software released into the public domain"},
			{"CC0", "CC0 1.0 Universal"},
		} {
			if strings.Contains(words, known[1]) {
				return known[0]
			}
		}
	}
	return ""
}
