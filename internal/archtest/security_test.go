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
	modules := linked(t, "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}")
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

// TestLinkedModules counts the modules in the binary, and says who links the ones that no peer uses: a constructor of libp2p's own configuration
// names the transport WebRTC, which drags in 17 modules of pion. No host is made with it.
func TestLinkedModules(t *testing.T) {
	const most, unused = 144, 17
	modules := linked(t, "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}")
	if len(modules) > most {
		t.Errorf("%d modules are linked, at most %d: justify a new one, and change the number", len(modules), most)
	}
	pion := slices.DeleteFunc(slices.Clone(modules), func(path string) bool { return !strings.HasPrefix(path, "github.com/pion/") })
	if len(pion) != unused {
		t.Errorf("%d modules of WebRTC are linked, and SECURITY.md explains %d: %v", len(pion), unused, pion)
	}
	const of, by = "github.com/libp2p/go-libp2p/p2p/transport/webrtc", "github.com/libp2p/go-libp2p/config"
	for _, line := range linked(t, `{{.ImportPath}}: {{join .Imports " "}} `) {
		importer, imports, _ := strings.Cut(line, ": ")
		if strings.Contains(imports+" ", of+" ") && importer != by {
			t.Errorf("%s imports WebRTC, which only %s may", importer, by)
		}
	}
}

// linked lists the packages of the binary in a format, sorted, each line once.
func linked(t *testing.T, format string) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, "./cmd/blackholed")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return slices.DeleteFunc(slices.Compact(lines), func(line string) bool { return line == "" })
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
