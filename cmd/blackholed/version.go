package main

import (
	"runtime"
	"runtime/debug"

	"github.com/blackhole/blackhole"
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

// version is the one of the file VERSION, as a release if the commit has its tag, else as what comes before it.
func version() string { return versionOf(blackhole.Version(), debug.ReadBuildInfo) }

func versionOf(next string, built func() (*debug.BuildInfo, bool)) string {
	if info, ok := built(); ok && info.Main.Version == next {
		return next
	}
	return next + "-dev"
}
