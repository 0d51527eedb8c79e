package main

import (
	"runtime"
	"runtime/debug"

	"github.com/blackhole/blackhole/internal/cli"
)

// built describes this program.
func built() cli.Build {
	b := cli.Build{Platform: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.time":
				b.Time = s.Value
			}
		}
	}
	return b
}

// version is the version of the built module.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
